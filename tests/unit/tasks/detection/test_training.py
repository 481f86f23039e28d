"""Detectors in training: any backbone, plug-ins, schedules, and what a crop leaves of objects."""

import json

import pytest
import torch

from saccade.building.build import build_model, build_task
from saccade.data.spec import InputSpec
from saccade.settings import ConfigError, LossConfig, ModelConfig, ScheduleConfig, TrainConfig
from saccade.settings.recipes import list_recipes
from saccade.tasks import Detect
from saccade.tasks.detection import keep_triton
from saccade.tasks.detection.anchors import halvings_for
from saccade.tasks.detection.detector import needs_host_sync
from saccade.tasks.opening import choose_task, open_samples
from saccade.training.optim import rate_at
from saccade.training.recipes import configure, default_recipe
from saccade.training.resolve import resolve
from support.objects import make_objects

HEAD = "mask_rcnn:width=8,hidden=8,sampled=8,proposals=10"
HEADS = [
    "retinanet:width=8,depth=1",
    "atss:width=8,depth=1",
    "reppoints_v2:width=8,depth=1",
    "sparse_rcnn:width=8,proposals=4,looks=1",
    HEAD,
    HEAD.replace("mask_rcnn", "cascade"),
]
STAGES = ["resnet10t", "tf_efficientnet_lite0", "glnet_nano", "convnext_atto", "pvt_v2_b0"]
COLUMNS = ["vit_tiny_patch16_224", "t2t_vit_7", "sot_7"]


def make_spec(*, side: int = 64, masks: bool = True) -> InputSpec:
    spec = InputSpec(("a", "b"), 3, side, [0.5] * 3, [0.5] * 3, task="detect")
    spec.extra |= {"masks": masks, "scale": [1.0, 1.0]}
    return spec


def make_batch(side: int = 64) -> dict[str, torch.Tensor]:
    mask = torch.zeros(2, 1, side, side, dtype=torch.int64)
    mask[0, 0, 8:40, 8:30] = 1
    mask[1, 0, 20:60, 10:50] = 1
    boxes = torch.zeros(2, 3, 4)
    boxes[0, 0], boxes[1, 0] = torch.tensor([8.0, 8, 30, 40]), torch.tensor([10.0, 20, 50, 60])
    labels = torch.tensor([[0, -1, -1], [1, -1, -1]])
    crowd = torch.zeros(2, 3, dtype=torch.bool)
    image = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    return {"image": image, "boxes": boxes, "labels": labels, "crowd": crowd, "mask": mask}


def make_task(name: str, head: str, *, plugins: tuple[str, ...] = (), spec: InputSpec | None = None) -> Detect:
    spec, config = spec or make_spec(), ModelConfig(name=name, head=head, plugins=list(plugins))
    task = build_task(build_model(config, spec, seed=0), choose_task("detect"), config, LossConfig(), spec, seed=0)
    return task.train()  # type: ignore[return-value]


def assert_learns_and_answers(task: Detect) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    result = task(make_batch(), seeds=torch.tensor([1, 2]))
    assert torch.isfinite(result["loss"])
    result["loss"].backward()
    task.eval()
    with torch.no_grad():
        found = task.answer({"image": torch.randn(1, 3, 64, 64)})
    assert found["boxes"].shape == (1, found["scores"].shape[1], 4)
    assert (found["boxes"] >= 0).all()
    assert (found["boxes"] <= 64).all()
    with torch.no_grad():
        assert task.answer(make_batch())["output"].shape[1] > 0  # with the truth beside the images, as in validation
    return result


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns_and_answers_on_a_pyramid_and_on_a_column(head):
    for name in ("resnet10t", "vit_tiny_patch16_224"):
        task = make_task(name, head)
        assert_learns_and_answers(task)
        silent = [n for n, p in task.model.head.named_parameters() if p.grad is None]
        assert not silent


@pytest.mark.parametrize("name", STAGES[1:] + COLUMNS[1:])
def test_any_backbone_carries_a_detector(name):
    assert_learns_and_answers(make_task(name, "atss:width=8,depth=1"))


@pytest.mark.parametrize("plugin", ["drloc", "broadcast:layers=all,spare_pyramid=true"])
def test_plugins_work_inside_a_detector(plugin):
    result = assert_learns_and_answers(make_task("vit_tiny_patch16_224", HEAD, plugins=(plugin,)))
    assert plugin != "drloc" or result["localization"] > 0


def test_broadcast_is_left_out_of_blocks_that_feed_the_pyramid():
    plain = make_task("vit_tiny_patch16_224", HEAD, plugins=("broadcast:layers=all",))
    spared = make_task("vit_tiny_patch16_224", HEAD, plugins=("broadcast:layers=all,spare_pyramid=true",))

    def hooked(task):
        blocks = task.model.backbone.blocks
        return {
            n
            for n, block in enumerate(blocks)
            if any(m._forward_hooks or m._forward_pre_hooks for m in block.modules())
        }

    assert hooked(plain) - hooked(spared) == {2, 5, 8, 11}


def test_the_same_seeds_give_the_same_losses_and_others_do_not():
    task, batch = make_task("resnet10t", HEAD).eval(), make_batch()
    task.model.head.rpn.sampled = 16
    losses = [task(batch, seeds=torch.tensor(seeds))["rpn_objects"].item() for seeds in ([1, 2], [1, 2], [3, 4])]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_objects_of_which_a_crop_shows_little_are_left_out():
    task, batch = make_task("resnet10t", HEAD), make_batch()
    batch["boxes"][0, 0] = torch.tensor([-95.0, 8, 5, 40])  # a twentieth of it is seen
    batch["boxes"][1, 0] = torch.tensor([-30.0, 8, 30, 40])
    found = task.objects(batch)
    assert found.labels.tolist() == [[-1], [1]]
    assert found.boxes[1, 0].tolist() == [0.0, 8.0, 30.0, 40.0]


def test_images_without_objects_teach_what_is_none():
    batch = make_batch()
    batch["labels"][:] = -1
    for head in HEADS:
        loss = make_task("resnet10t", head)(batch, seeds=torch.tensor([1, 2]))["loss"]
        assert torch.isfinite(loss)
        assert loss > 0


def test_a_head_keeps_as_many_answers_as_are_asked_for():
    spec = make_spec()
    spec.extra["kept"] = 150
    assert make_task("resnet10t", HEAD, spec=spec).model.head.kept == 150


def test_steps_that_wait_for_the_device_are_not_captured(monkeypatch):
    monkeypatch.setattr("saccade.tasks.detection.detector.has_triton", lambda: True)
    assert [name for name in HEADS if needs_host_sync(name)] == ["sparse_rcnn:width=8,proposals=4,looks=1"]
    monkeypatch.setattr("saccade.tasks.detection.detector.has_triton", lambda: False)
    assert needs_host_sync("mask_rcnn")
    assert needs_host_sync("cascade:width=8")
    assert not needs_host_sync("atss")
    config = TrainConfig(model=ModelConfig(head="sparse_rcnn"))
    assert Detect.adapt(config)[0].engine.graphs is False
    assert Detect.adapt(TrainConfig(model=ModelConfig(head="atss")))[0].engine.graphs is None


def test_boxes_on_the_processor_are_never_sent_to_the_kernel():
    assert not keep_triton.can_replay(torch.zeros(1, 4, 4))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("retina", "retinanet"),
        ("atss:widht=8", "width"),
        ("mask_rcnn:width=0", "model.head"),
        ("atss:depth=x", "depth"),
    ],
)
def test_a_head_that_cannot_be_is_refused_by_name(head, said):
    with pytest.raises(ConfigError, match=said):
        make_task("resnet10t", head)


def test_rates_fall_to_a_tenth_at_given_shares():
    schedule = ScheduleConfig(epochs=12, warmup_steps=6, curve="steps", falls=[8 / 12, 11 / 12], min_lr=0.0)
    rates = [rate_at(step, steps_per_epoch=10, peak=1.0, schedule=schedule) for step in range(120)]
    assert rates[0] < 0.2
    assert rates[10] == rates[79] == 1.0
    assert rates[80] == rates[109] == pytest.approx(0.1)
    assert rates[110] == rates[119] == pytest.approx(0.01)


def test_recipes_of_papers_name_detectors_that_exist():
    papers = [name for name in list_recipes() if name.startswith("detect")]
    assert {"detect", "detect_1x", "detect_3x", "detect_lsj"} <= set(papers)
    for name in papers:
        config = configure(name, {})
        assert choose_task(config.task).kind is Detect
        assert config.schedule.epochs in (12, 36, 60, 100)
    assert choose_task(configure("detect_lsj", {}).task).options.scale == [0.1, 2.0]


def test_trained_weights_are_tuned_by_a_recipe_of_their_own():
    assert default_recipe({"task": "detect"}) == "detect"
    assert default_recipe({"task": "detect:least=0.1", "model.checkpoint": "weights"}) == "detect_finetune"
    assert default_recipe({"task": "segment", "model.pretrained": True}) == "segment_finetune"
    assert default_recipe({"model.pretrained": True}) == "finetune"
    config = configure(None, {"task": "detect", "model.checkpoint": "w", "model.name": "tf_efficientnet_lite0"})
    assert config.model.keep_statistics
    assert config.requires_checkpoint
    assert config.optim.new_scale > 1


@pytest.mark.parametrize(("side", "asked", "used"), [(160, None, 160), (560, None, 256), (160, 64, 64)])
def test_objects_are_sought_at_the_images_own_size_up_to_a_limit(tmp_path, side, asked, used):
    given = {
        "task": "detect",
        "data.path": str(make_objects(tmp_path, side=side, train=2, val=1)),
        "model.name": "glnet_nano",
    }
    config = configure(None, given | ({} if asked is None else {"data.img_size": asked}))
    choice, data = open_samples(config.task, config.data)
    assert resolve(config, choice, data, torch.device("cpu"))[1].img_size == used


@pytest.mark.parametrize("head", [HEAD, HEAD.replace("mask_rcnn", "cascade")])
def test_a_cpu_looks_for_masks_only_where_there_are_objects(monkeypatch, head):
    task, seen = make_task("resnet10t", head.replace("sampled=8", "sampled=64")), []
    for part in task.model.head.mask_heads:
        part.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    task.model.eval()  # nothing is drawn by lot
    few = {name: value.item() for name, value in task.model.losses(*_asked(task)).items()}
    assert max(seen) < 2 * 11
    monkeypatch.setattr("saccade.tasks.detection.roi.rows_needed", lambda _, most: most)
    all_rows = {name: value.item() for name, value in task.model.losses(*_asked(task)).items()}
    assert max(seen) == 2 * 11  # all that were proposed, and the object
    assert few == pytest.approx(all_rows, rel=1e-5)


def _asked(task):
    batch = make_batch()
    return batch["image"], task.objects(batch), torch.tensor([1, 2])


def test_a_cpu_keeps_as_many_rows_of_objects_as_a_batch_has():
    task = make_task("resnet10t", HEAD)
    found = task.objects(make_batch())
    assert found.masks is not None
    assert found.boxes.shape == (2, 1, 4)
    assert found.masks.shape == (2, 1, 64, 64)
    none = make_batch() | {"labels": torch.full((2, 3), -1)}
    assert task.objects(none).labels.tolist() == [[-1], [-1]]


def test_anchors_begin_near_the_smallest_objects():
    assert [halvings_for(side) for side in (None, 40.0, 22.0, 14.0, 10.0, 1.0)] == [0, 0, 0, 1, 2, 3]
    spec = make_spec()
    spec.extra["halvings"] = 1
    assert make_task("resnet10t", HEAD, spec=spec).model.head.rpn.grid.sizes == (4.0,)
    assert make_task("resnet10t", HEADS[0], spec=spec).model.head.grid.sizes[0] == 2.0
    assert make_task("resnet10t", HEADS[1], spec=spec).model.head.grid.sizes == (8.0,)  # it chooses by statistics


@pytest.mark.parametrize(("head", "times"), [("mask_rcnn", 1), ("mask_rcnn:anchor=8", 0), ("atss", 0)])
def test_anchors_are_fitted_to_the_objects_of_a_set_unless_they_are_given(tmp_path, head, times):
    data = make_objects(tmp_path, side=160, train=2, val=1)
    for file in data.glob("*.json"):
        told = json.loads(file.read_text())
        for one in told["annotations"]:
            one["bbox"][2:] = [14, 14]
        file.write_text(json.dumps(told))
    config = configure(None, {"task": "detect", "data.path": str(data), "model.head": head, "data.img_size": 160})
    choice, opened = open_samples(config.task, config.data)
    spec = resolve(config, choice, opened, torch.device("cpu"))[1]
    assert spec.extra.get("halvings", 0) == times
    assert any("anchors start at 16 pixels" in note for note in spec.notes) == bool(times)
