"""A setting that a user gives is read by the run or refused: for every setting there is, in trainings of every kind."""

import dataclasses
import functools
import re
import sys
import typing
from typing import Any, get_args, get_origin

import pytest
import torch

import saccade
from saccade.comparison.compare import plan_comparison
from saccade.settings import ConfigError, TrainConfig, flatten, overlay
from saccade.settings.overrides import names_of
from saccade.tasks.opening import open_samples
from saccade.training.idle import idle_options
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.unread import READ, Situation, require_rules, unread
from support.images import encoded, write_shard
from support.lists import numbers_list
from support.masks import make_masks
from support.objects import make_objects
from support.questions import make_vilt, questions, write_questions
from support.texts import make_model, write_cola
from support.training import tiny
from support.trainings import png_folder

CPU = torch.device("cpu")
# Those that read settings as such, not as a run does.
ASIDE = (
    "saccade.settings.schema",
    "saccade.settings.changes",
    "saccade.settings.decisions",
    "saccade.settings.overrides",
    "saccade.training.unread",
    "saccade.training.idle",
    "dataclasses",
    "copy",
    "test_unread",
)
ELSEWHERE = {  # read on a GPU or in several processes
    "engine.graphs",
    "engine.channels_last",
    "engine.parallel",
}
STRONG = {
    "augment.mixup": 0.2,
    "augment.cutmix": 1.0,
    "augment.rand_ops": 1,
    "augment.erase": 0.3,
    "augment.jitter": 0.1,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Settings of runs of every kind by name, each with a recipe."""
    root = tmp_path_factory.mktemp("sets")
    (root / "shards").mkdir()
    write_shard(root / "shards" / "train-000.tar", [(f"{n:04d}", encoded(n), str(n % 3)) for n in range(48)])
    write_shard(root / "shards" / "val-000.tar", [(f"v{n}", encoded(100 + n), str(n % 3)) for n in range(9)])
    png = str(png_folder(root / "png"))
    flat = str(png_folder(root / "flat", val=1) / "train")  # some are held out for validation
    quick = {"model.options": tiny()["model.options"], "data.img_size": 16}
    model, two = {"model.options": tiny()["model.options"]}, {"optim.batch_size": 2}
    timms = {"augment.crop": "resized", "augment.rand_kind": "timm", "schedule.curve": "steps", "data.workers": 1}
    weaker = {"augment.jitter": 0.2, "augment.full_epochs": 40}
    vqa = {"task": "vqa", "data.path": str(write_questions(root / "vqa", list(questions(20)))), "data.img_size": 32}
    masks, objects = str(make_masks(root / "masks", train=8)), str(make_objects(root / "objects", train=6, val=2))
    texts = {"data.path": str(write_cola(root / "cola")), "schedule.warmup_share": 0.2}
    fpn, retinanet = {"model.head": "fpn:width=16,inner=32"}, {"model.head": "retinanet:width=8"}
    return {
        "arrays": ("quick", {**quick, **STRONG, "data.train_limit": 50, "optim.name": "sgd", "schedule.curve": "poly"}),
        "files": ("quick", {**quick, **STRONG, **timms, "data.path": png}),
        "held out": ("quick", {**quick, **weaker, "data.path": flat, "augment.repeats": 2, "schedule.steps": 4}),
        "folds": ("quick", {**quick, **two, "data.path": flat, "data.folds": 3, "schedule.warmup_steps": 1}),
        "stream": ("quick", {**quick, "data.path": str(root / "shards"), "data.workers": 0}),
        "trained": ("finetune", {**quick, "data.path": png, "model.name": "glnet_nano", "optim.layer_decay": None}),
        "numbers": ("quick", {**quick, "data.path": str(numbers_list(root / "numbers"))}),
        "masks": ("segment", {**model, **two, **fpn, "data.path": masks, "data.img_size": 32}),
        "objects": ("detect", {**model, **two, **retinanet, "data.path": objects, "data.img_size": 64}),
        "texts": ("text", {**texts, "model.name": str(make_model(root / "bert"))}),
        "questions": ("text", {**vqa, **two, "model.name": str(make_vilt(root / "vilt"))}),
    }


COMMON = {"engine.device": "cpu", "engine.threads": 1, "optim.batch_size": 8, "schedule.epochs": 1}
NAMES = (
    "arrays",
    "files",
    "held out",
    "folds",
    "stream",
    "trained",
    "numbers",
    "masks",
    "objects",
    "texts",
    "questions",
)


class Reads:
    """Which settings are read while it is entered, by dotted name."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        groups = {type(getattr(TrainConfig(), f.name)): f"{f.name}." for f in dataclasses.fields(TrainConfig)}
        self.prefixes = {kind: name for kind, name in groups.items() if dataclasses.is_dataclass(kind)}
        self.prefixes[TrainConfig] = ""

    def __enter__(self) -> "Reads":
        for kind, prefix in self.prefixes.items():
            kind.__getattribute__ = self._recorder(prefix)  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        for kind in self.prefixes:
            del kind.__getattribute__

    def _recorder(self, prefix: str) -> Any:
        def read(config: Any, name: str) -> Any:
            if not name.startswith("_"):
                module = sys._getframe(1).f_globals.get("__name__", "")
                if not module.endswith(ASIDE):
                    self.names.add(prefix + name)
            return object.__getattribute__(config, name)

        return read


@pytest.fixture(scope="module")
def read(runs, tmp_path_factory):
    """What each run reads: of every setting, whether anything asked for it from the beginning to the end."""
    root, found = tmp_path_factory.mktemp("runs"), {}
    for name, (recipe, given) in runs.items():
        weights = {"model.checkpoint": str(root / "files")} if name == "trained" else {}
        epochs = {key: value for key, value in COMMON.items() if not (key == "schedule.epochs" and name == "held out")}
        with Reads() as reads:
            saccade.train(recipe=recipe, out=root / name, quiet=True, settings={**epochs, **given, **weights})
        found[name] = reads.names
    runs["trained"][1]["model.checkpoint"] = str(root / "files")
    return found


@functools.cache
def other_values(name: str) -> list[Any]:
    """Return values of a setting that are not its default, by what it takes."""
    default = flatten(TrainConfig())[name]
    candidates = [
        *_choices(name),
        True,
        False,
        1,
        2,
        3,
        0.5,
        0.25,
        [0.5, 0.9],
        [0.5],
        ["broadcast"],
        {"x": "y"},
        "fpn",
        "x",
    ]
    found = []
    for value in candidates:
        try:
            overlay(TrainConfig(), {name: value})
        except ConfigError:
            continue
        if value != default:
            found.append(value)
    return found


def _choices(name: str) -> list[Any]:
    kind: Any = TrainConfig
    for part in name.split("."):
        kind = typing.get_type_hints(kind)[part]
    options = get_args(kind) if get_origin(kind) is not typing.Literal else (kind,)
    return [value for one in options if get_origin(one) is typing.Literal for value in get_args(one)]


def situation(recipe, given):
    config = configure(recipe, {**COMMON, **given})
    choice, data = open_samples(config.task, config.data)
    return config, resolve(config, choice, data, CPU)[0], choice, data


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_read_by_the_run_or_refused(runs, read, name):
    config, resolved, choice, data = situation(*runs[name])
    for leaf in READ:
        own = flatten(config)[leaf]
        value = next((one for one in other_values(leaf) if one not in (own, 0)), other_values(leaf)[0])
        asked, fitted = overlay(config, {leaf: value}), overlay(resolved, {leaf: value})
        try:
            refused = unread([leaf], Situation(asked, fitted, choice, data, CPU))
        except ConfigError:  # the task itself refuses it
            continue
        assert refused or leaf in read[name], f"{leaf} = {value!r} is taken and nothing reads it"


def test_every_setting_is_read_by_some_run(runs, read):
    taken = set()
    for name in NAMES:
        config, resolved, choice, data = situation(*runs[name])
        now = Situation(config, resolved, choice, data, CPU)
        taken |= {leaf for leaf in READ if READ[leaf].when(now)}
    assert READ.keys() - taken == ELSEWHERE


def test_what_the_runs_were_given_was_not_refused(runs, read):
    assert read.keys() == runs.keys()


def test_a_setting_of_which_nobody_says_when_it_is_read_stops_the_program():
    with pytest.raises(TypeError, match="sharpen"):
        require_rules({*READ, "augment.sharpen"})


@pytest.mark.parametrize(
    ("name", "setting", "told"),
    [
        ("questions", {"augment.jitter": 0.4}, "augment.jitter = 0.4 was given, but .*task vqa"),
        ("questions", {"augment.rand_ops": 2, "augment.rand_kind": "simple"}, "augment.rand_kind=vilt"),
        ("texts", {"optim.new_scale": 10.0}, "optim.new_scale = 10.0 .*starts from trained weights"),
        ("texts", {"schedule.head_epochs": 2.0}, "schedule.head_epochs"),
        ("arrays", {"augment.scale": [0.5, 1.0]}, "augment.scale .*augment.crop=resized"),
        ("arrays", {"data.buffer": 9}, "data.buffer .*streams"),
        ("numbers", {"augment.mixup": 0.5}, "task regress .*uses 0.0 instead"),
        ("arrays", {"augment": {"pad": 0.2, "crop": "none"}}, "augment.pad"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_before_anything_is_written(runs, tmp_path, name, setting, told):
    recipe, given = runs[name]
    with pytest.raises(ConfigError, match=told):
        saccade.train(recipe=recipe, out=tmp_path / "run", quiet=True, settings={**COMMON, **given, **setting})
    assert not (tmp_path / "run").exists()


def test_what_a_recipe_says_may_be_idle(runs):
    recipe, given = runs["files"]
    config, resolved, choice, data = situation(recipe, given)
    assert not unread(names_of(given), Situation(config, resolved, choice, data, CPU))
    assert not READ["augment.pad"].when(Situation(config, resolved, choice, data, CPU))  # `quick` has one


def test_all_settings_of_a_run_may_be_given_anew(runs):
    for recipe, given in (own for name, own in runs.items() if name not in ("texts", "questions")):
        _, resolved, choice, data = situation(recipe, given)  # other samples: a run's config.yaml is its recipe
        assert not unread(READ, Situation(resolved, resolved, choice, data, CPU))


def compare(tmp_path, *arms, **values):
    quick = {"model.options": tiny()["model.options"], "data.train_limit": 32, **COMMON, **values}
    return plan_comparison(
        arms=arms, seeds=2, recipe="quick", settings=quick, device="cpu", out=tmp_path / "c", quiet=True
    )


def test_an_arm_whose_setting_nothing_reads_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"arm 'x': augment\.scale"):
        compare(tmp_path, "base", "x:=augment={scale: [0.5, 1.0]}")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model.name": "glnet_nano", "model.options": {"kmeans_iterations": 5}}, "clustering=soft.*clustering=kmeans"),
        ({"model.name": "glnet_nano", "model.options": {"kmeans_iterations": 5, "clustering": "kmeans"}}, None),
        (
            {"model.name": "sot_7", "model.options": {"num_iter": 3, "normalization": "epn"}},
            "svpn or normalization|svpn",
        ),
        ({"model.name": "sot_7", "model.options": {"num_iter": 3}}, None),
        ({"model.name": "sot_7", "model.options": {"num_iter": 3, "pooling": "gcp"}}, None),
        ({"model.name": "sot_7", "model.options": {"epn_axis": "vector"}}, "only used with normalization=epn"),
        (
            {"model.plugins": ["drloc:schedule=constant,ramp_epochs=5"]},
            "ramp_epochs has no effect with schedule=constant",
        ),
        ({"model.plugins": ["drloc:ramp_epochs=5"]}, None),
        ({"model.plugins": ["second_order:normalization=sqrt_d,alpha=0.3"]}, "alpha has no effect"),
        ({"model.plugins": ["second_order:pooling=gcp,alpha=0.3"]}, "only used with normalization=power;"),
        ({"model.plugins": ["second_order:pooling=gap,num_iter=3"]}, None),  # the builder says what is wrong
        ({"model.plugins": ["second_order:pooling=gcp,num_sv=2"]}, None),
    ],
)
def test_an_option_that_does_nothing_beside_others_is_refused(given, told):
    config = configure("quick", given)
    choice, data = open_samples("classify", config.data)
    found = unread(given, Situation(config, config, choice, data, CPU))
    assert bool(found) == (told is not None)
    if told is not None:
        assert re.search(told, *found.values())
    assert not idle_options(config.model, config.model, flatten(config))  # of a recipe, which is taken as it is


@pytest.mark.parametrize(
    ("option", "told"),
    [("kmeans_iterations", None), ("slot_scale", "model.options.slot_scale")],
)
def test_options_are_judged_beside_those_of_the_checkpoint(option, told):
    config = configure("quick", {"model.name": "glnet_nano", "model.options": {option: 5}})
    choice, data = open_samples("classify", config.data)
    merged = overlay(config, {"model.options": {"clustering": "kmeans", "slot_scale": 1, **config.model.options}})
    found = unread(["model.options"], Situation(config, merged, choice, data, CPU))
    assert [*found] == ([] if told is None else [told])


def test_arms_that_would_be_one_network_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"arm 'x': the plug-in .* ramp_epochs has no effect"):
        compare(tmp_path, "base", "x:=drloc:schedule=constant,ramp_epochs=5")


def test_a_setting_of_all_arms_is_read_by_one_of_them_at_least(tmp_path):
    values = {"augment.scale": [0.5, 1.0]}
    with pytest.raises(ConfigError, match=r"augment\.scale"):
        compare(tmp_path, "base", "lr=0.5", **values)
    assert compare(tmp_path, "base", "augment.crop=resized", **values).arm("augment.crop=resized").failed is None
