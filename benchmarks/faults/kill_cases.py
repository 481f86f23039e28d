"""Cases that `kills.py` trains: every task, kind of data, plug-in and family of models."""

from dataclasses import dataclass, field

from benchmarks.faults.kill_sets import VIT

GLNET = {"dims": [8, 16], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2]}
SWIN = ("swin_tiny_patch4_window7_224", {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4})
FAMILIES = {
    "glnet_nano": GLNET,
    "nommer_tiny": {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "cnn_reduction": 2},
    "sot_7": {"depth": 1},
    "cvt_13": {"depths": [1, 1, 1]},
    "t2t_vit_7": {"depth": 1},
    "resnet10t": {},
}
# What a plug-in is given; those of one task alone are told in `cases`.
PLUGINS = {
    "": (),
    "broadcast": ("broadcast:scale=true",),
    "extra_block": ("extra_block",),
    "second_order": ("second_order:num_heads=1,head_dim=4",),
    "squeeze": ("squeeze",),
    "token_embedding": ("token_embedding",),
    "uniform": ("uniform",),
    "drloc": ("drloc",),
    "two": ("broadcast", "drloc:weight=0.3"),
    "token_label": ("token_label",),
    "label maps": ("token_label:maps={maps}",),
    "distill": ("distill:teacher={teacher}",),
}
OF_CLASSES = ("token_label", "label maps", "distill")
IMAGES = (
    "embedded", "folder", "list", "list in parquet", "images in parquet", "saved", "hub", "hub stream", "shards", "npz",
    "arrays",
)  # fmt: skip
READS = {  # kinds of data by the reader that opens them
    "list in parquet": "list", "images in parquet": "parquet", "hub stream": "hub", "labels": "list", "numbers": "list",
    "texts": None, "questions": None,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        task: its name.
        data: what it is trained on, see `DATA`.
        plugin: a key of `PLUGINS`.
        model: its name and options; a folder that was made if there are none.
        settings: beside those that are drawn.
    """

    task: str
    data: str
    plugin: str = ""
    model: tuple = VIT
    settings: dict = field(default_factory=dict)

    def __str__(self):
        return " ".join(filter(None, (self.task, self.data, self.model[0].split("_")[0], self.plugin)))


def cases():
    """Return all that is trained: each plug-in on a third of the kinds of data of classes, and on every other task."""
    plain = [name for name in PLUGINS if name not in OF_CLASSES]
    found = [Case("classify", "folder", plugin) for plugin in OF_CLASSES]  # labels and a teacher are of these images
    for place, plugin in enumerate(plain):
        found += [Case("classify", data, plugin) for number, data in enumerate(IMAGES) if (place + number) % 3 == 0]
    found += [Case("classify", "folder", model=one) for one in [*FAMILIES.items(), SWIN]]
    found += [
        Case(task, data, plugin)
        for task, data in (("multilabel", "labels"), ("regress", "numbers"))
        for plugin in plain
    ]
    head = {"model.head": "fpn:width=16,inner=32"}
    spared = ("", "broadcast", "drloc", "uniform", "extra_block")
    deeper = (VIT[0], VIT[1] | {"depth": 4})
    found += [Case("segment", "masks", plugin, deeper, head) for plugin in spared]
    found += [Case("segment", "masks", model=("resnet10t", {}), settings={"model.head": "upernet:width=16"})]
    found += [Case("text", "texts", plugin, model=("bert", None)) for plugin in ("", "broadcast", "second_order")]
    found += [Case("text", "texts", plugin, model=("gpt", None)) for plugin in ("", "second_order")]
    found += [Case("vqa", "questions", plugin, model=("vilt", None)) for plugin in ("", "broadcast")]
    return found


def uncovered(known):
    """Return tasks, readers and plug-ins that no case is about."""
    from saccade.data.reader import READERS
    from saccade.plugins.registry import PLUGINS as REGISTERED
    from saccade.tasks import TASKS

    tasks = {case.task for case in known}
    readers = {READS.get(case.data, case.data) for case in known}
    plugins = {text.partition(":")[0] for case in known for text in PLUGINS[case.plugin]}
    return sorted((set(TASKS) - tasks) | (set(READERS) - readers) | (set(REGISTERED) - plugins))


def draw_settings(case, draw):
    """Return settings of a run of a second, those beside the case drawn."""
    size = 64 if case.task == "segment" else 32
    name, options = case.model
    settings = {
        "data.img_size": size, "data.workers": draw.choice((0, 0, 2)), "optim.batch_size": 16, "engine.threads": 1,
        "engine.device": "cpu", "schedule.epochs": draw.choice((2, 3)), "schedule.warmup": 1,
        "keep.states": draw.choice((1, 2)),
        "keep.every_steps": draw.choice((None, 1, 2, 3)), "keep.ema": draw.choice((None, 0.9)),
        "optim.accumulate": draw.choice((1, 2)), "optim.name": draw.choice(("adamw", "sgd", "lamb")),
        "seed": draw.randrange(1000),
    }  # fmt: skip
    if options is not None:
        settings["model.options"] = options
        settings["model.name"] = name
    if case.data == "embedded":
        settings["data.train_limit"] = 60
    if case.task in ("classify", "multilabel", "regress"):
        mixing = case.task != "regress" and case.plugin not in ("token_label", "label maps")
        settings |= {
            "augment.mixup": draw.choice((0.0, 0.2)) if mixing else 0.0, "augment.cutmix": 0.5 if mixing else 0.0,
            "augment.erase": draw.choice((0.0, 0.3)), "augment.rand_ops": draw.choice((0, 1)),
            "augment.crop": draw.choice(("pad", "resized")), "model.drop_path": draw.choice((None, 0.2)),
            "data.resident": draw.choice(("auto", "never")),
        }  # fmt: skip
        if "stream" not in case.data and case.data != "shards":
            settings["augment.repeats"] = draw.choice((1, 2))
    return settings | case.settings
