"""Every value of a resolved run has a reason: a rule and a fact, without which it would be another."""

import math
import re
from collections.abc import Iterable
from dataclasses import is_dataclass

import pytest

from saccade.models._identify import resolve_name
from saccade.settings import TrainConfig, flatten
from saccade.settings.decisions import (
    beside_recipe,
    decide,
    decided_later,
    decisions_between,
    latest,
    put,
    read_decisions,
    write_decisions,
)
from saccade.settings.facts import (
    ComparedFacts,
    Facts,
    MachineFacts,
    ModelFacts,
    SetFacts,
    TimeFacts,
    TriedRate,
    Weights,
)
from saccade.settings.machine_rules import MEMORY_RULES
from saccade.settings.rules import rules
from saccade.tasks.opening import choose_task
from saccade.training.recipes import configure, make_request

CPU, GPU = MachineFacts(gpu=False, cores=2), MachineFacts(gpu=True, cores=16)
PHOTOGRAPHS = SetFacts("classify", samples=2000, side=160, decoded=(150e6, 15e6))
ARRAYS = SetFacts(
    "classify", samples=50_000, array=(28, 3), measured=([0.5, 0.5, 0.4], [0.2, 0.2, 0.3]), decoded=(118e6, 24e6)
)
GLNET = ModelFacts("glnet_nano", requested="glnet_nano", side=32, above_small={"patch": 4})
WEIGHTS = Weights(288, 3, [0.5] * 3, [0.5] * 3, {"drop_rate": 0.1})
TEN_MINUTES = TimeFacts("10 min", 38, "about 9 min", options={"dims": [16, 32]}, img_size=64, slow="3 epochs fit")

HOSTED = ModelFacts("hf:nobody/model", requested="hf:nobody/model")
ARM = ComparedFacts(seed=3, every=4, validated=5000, tuned={"optim.weight_decay": 0.2}, longest=22, epochs=12)


def model(name):
    return ModelFacts(resolve_name(name), requested=name)


# name: recipe, what is given, and the facts.
RUNS = {
    "nothing named, CPU, ten minutes": (None, {}, Facts(data=PHOTOGRAPHS, model=GLNET, machine=CPU, time=TEN_MINUTES)),
    "nothing named, GPU": (None, {}, Facts(data=ARRAYS, model=GLNET, machine=GPU)),
    "a ViT on small images": (
        None,
        {"model.name": "vit_tiny"},
        Facts(data=ARRAYS, model=model("vit_tiny"), machine=GPU),
    ),
    "few photographs and a Swin": (
        "small",
        {"model.name": "swin_tiny"},
        Facts(data=PHOTOGRAPHS, model=model("swin_tiny"), machine=CPU),
    ),
    "a rate that was tried": (
        None,
        {"model.name": "regnety_002"},
        Facts(data=PHOTOGRAPHS, model=model("regnety_002"), machine=CPU, tried=TriedRate(3e-3, 64, "best of 5 tried")),
    ),
    "a rate that is given": (
        None,
        {"optim.lr": 1e-3, "schedule.epochs": 20, "model.plugins": ["broadcast"]},
        Facts(data=PHOTOGRAPHS, model=GLNET, machine=CPU),
    ),
    "pretrained weights": (
        None,
        {"model.name": "resnet18", "model.pretrained": True},
        Facts(
            data=PHOTOGRAPHS,
            model=ModelFacts(
                "resnet18", requested="resnet18", weights=Weights(288, 3, [0.5] * 3, [0.5] * 3, {"drop_rate": 0.1})
            ),
            machine=GPU,
        ),
    ),
    "segmentation by steps": (
        "segment_swin",
        {},
        Facts(data=SetFacts("classify", samples=2000, side=500, largest=512), model=model("swin_tiny"), machine=GPU),
    ),
    "regression": (
        "cifar",
        {"task": "regress"},
        Facts(data=SetFacts("classify", samples=900, side=300), model=GLNET, machine=CPU),
    ),
    "segmentation of large images": (
        "segment",
        {},
        Facts(
            data=SetFacts("classify", samples=2000, side=1024, longer=2048, thinnest=8.0, largest=512),
            model=GLNET,
            machine=GPU,
        ),
    ),
    "detection, short": (
        "detect",
        {"schedule.epochs": 5, "data.img_size": 256},
        Facts(data=SetFacts("classify", samples=300, side=480, largest=640), model=GLNET, machine=CPU),
    ),
    "segmentation by a Hugging Face model": (
        "segment",
        {"model.name": "hf:nobody/segformer"},
        Facts(data=SetFacts("segment", samples=300, side=480, largest=512), model=HOSTED, machine=GPU),
    ),
    "texts": (
        "text",
        {"model.name": "nobody/roberta"},
        Facts(data=SetFacts("text", samples=8000), model=HOSTED, machine=GPU),
    ),
    "questions": (
        "vqa",
        {"model.name": "nobody/vilt"},
        Facts(data=SetFacts("vqa", samples=8000), model=HOSTED, machine=CPU),
    ),
    "an arm of a comparison": (
        "small",
        {"model.plugins": ["broadcast"]},
        Facts(data=PHOTOGRAPHS, model=GLNET, machine=CPU, compared=ARM),
    ),
    "a fold of a comparison": (
        "small",
        {"data.folds": 5},
        Facts(data=PHOTOGRAPHS, model=GLNET, machine=CPU, compared=ComparedFacts(seed=7, fold=3, repeat=1)),
    ),
}


# Settings that two rules give the same value: the second one, beside that which came first.
CROPPING = ("detection, short", "segmentation by steps", "segmentation of large images")
TWICE = {(name, "augment.crop"): "own-crops" for name in CROPPING}
HOSTED_RUNS = {"segmentation by a Hugging Face model": "own-crops", "texts": "texts", "questions": "questions"}
for run, rule in HOSTED_RUNS.items():
    TWICE |= {(run, "task"): "task-of-set", (run, "augment.crop"): rule, (run, "augment.flip"): rule}
TWICE |= {("texts", "optim.lr"): "variants", ("questions", "engine.compile"): "compile"}
TWICE |= {("questions", "engine.graphs"): "graphs"}


def rules_of(name):
    recipe, given, _ = RUNS[name]
    return rules(choose_task(configure(recipe, given).task or "classify").kind.task_rules())


def resolved(name, *, record=None, without=()):
    recipe, given, facts = RUNS[name]
    facts = Facts(**{**vars(facts), "request": make_request(recipe, given)})
    return decide(TrainConfig(), facts, rules_of(name), record=record, without=without)


def said_facts(facts, config):
    """Return what names a fact in a reason: every number and name that is known, and the length decided before."""
    found = set()
    for value in (*leaves(facts), config.recipe, config.schedule.epochs, *config.model.name.split("_")):
        found |= {str(value), f"{value:,}"} if isinstance(value, int) and value > 1 else {str(value)}
    machine = "GPU" if facts.machine.gpu else "CPU"
    return {one for one in found if len(one) > 1 or one.isdigit()} | {machine}


def leaves(value):
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for one in value:
            yield from leaves(one)


def names_a_fact(one, facts, config):
    if one.who == "you" and one.rule != "seeds":  # the fact is what was given
        return "given" in one.why
    if one.who == "task":  # the fact is the task
        return one.rule in {rule.name for rule in choose_task(config.task).kind.task_rules()}
    if one.rule == "resident":
        return all(f"{size / 1e6:,.0f} MB" in one.why for size in facts.data.decoded)
    return any(re.search(rf"(?<![\w.]){re.escape(fact)}(?![\w])", one.why) for fact in said_facts(facts, config))


@pytest.mark.parametrize("name", RUNS)
def test_every_value_that_is_no_default_has_a_rule_and_a_fact_without_which_it_is_another(name):
    record = []
    config = resolved(name, record=record)
    who, defaults = latest(record, config), flatten(TrainConfig())
    values = flatten(config)
    others = {setting for setting, value in values.items() if value != defaults[setting]}
    assert others
    assert others <= who.keys(), "nobody decided these"
    for setting in others:
        one = who[setting]
        assert one.rule in {rule.name for rule in rules_of(name)}
        assert names_a_fact(one, RUNS[name][2], config), one
    for rule in {who[setting].rule for setting in others}:
        again = []
        try:
            without = flatten(resolved(name, without=(rule,), record=again))
        except AssertionError:  # nobody says how large the images are, without which there is no run
            assert rule.startswith("size-of")
            continue
        same = {s for s in others if who[s].rule == rule and without[s] == values[s]}
        assert {s: one.rule for one in again if (s := one.setting) in same} == {
            setting: TWICE.get((name, setting)) for setting in same
        }


def test_what_the_user_gives_is_what_there_is():
    for name, (_, given, _) in RUNS.items():
        record = []
        values = flatten(resolved(name, record=record))
        for setting, value in given.items():
            if setting in flatten(TrainConfig()) and setting != "model.name":
                assert values[setting] == value, name
        assert {one.setting for one in record if one.who == "you"} >= {
            name for name, value in given.items() if value != flatten(TrainConfig())[name] and name != "optim.lr"
        }


def test_the_runs_are_decided_by_all_kinds_of_facts():
    seen = set()
    for name in RUNS:
        record = []
        resolved(name, record=record)
        seen |= {one.who for one in record}
    assert seen == {"recipe", "family", "you", "model", "task", "set", "machine", "budget"}


def test_decisions_are_kept_in_a_folder_and_none_are_read_from_an_older_one(tmp_path):
    record = []
    config = resolved("few photographs and a Swin", record=record)
    write_decisions(tmp_path, record)
    assert read_decisions(tmp_path) == record
    assert read_decisions(tmp_path / "older") == []
    changed = {one.setting: one for one in beside_recipe(record, config)}
    assert (changed["optim.lr"].before, changed["optim.lr"].value) == (2e-3, config.optim.lr)
    assert "optim.least_steps" not in changed


def test_values_are_put_as_they_are():
    config = put(TrainConfig(), {"model.options": {"depth": 2}, "seed": 3})
    assert put(config, {"model.options": {"dim": 8}}).model.options == {"dim": 8}
    (one,) = decisions_between(config, put(config, {"seed": 4}), who="you", rule="you", why="given")
    assert (one.setting, one.before, one.value) == ("seed", 3, 4)


GIB = 2**30


@pytest.mark.parametrize(
    ("facts", "optimizer", "graphs", "why"),
    [
        (CPU, "adamw", False, "a CPU"),
        (GPU, "adamw", True, "a GPU by adamw"),
        (GPU, "sgd", True, "a GPU by sgd"),
        (GPU, "lamb", False, "the optimizer lamb"),
        (MachineFacts(gpu=True, cores=16, processes=4), "adamw", False, "4 processes"),
    ],
)
def test_steps_are_captured_where_they_can_be(facts, optimizer, graphs, why):
    record = []
    config = decide(put(TrainConfig(), {"optim.name": optimizer}), Facts(machine=facts), rules(), record=record)
    assert config.engine.graphs is graphs
    assert why in latest(record, config)["engine.graphs"].why
    for own in (True, False):  # what the user gives
        given = put(TrainConfig(), {"optim.name": optimizer, "engine.graphs": own})
        assert decide(given, Facts(machine=facts), rules()).engine.graphs is own


def test_float16_is_not_captured():
    given = put(TrainConfig(), {"engine.precision": "float16"})
    assert decide(given, Facts(machine=GPU), rules()).engine.graphs is False


@pytest.mark.parametrize(
    ("decoded", "array", "processes", "kept"),
    [
        ((1 * GIB, GIB / 10), None, 1, "always"),
        ((1 * GIB, GIB / 10), None, 4, "validation"),
        ((20 * GIB, GIB), None, 1, "validation"),
        ((30 * GIB, 3 * GIB), None, 1, "never"),
        ((math.inf, GIB), None, 1, "validation"),  # a stream
        ((30 * GIB, GIB), (32, 3), 1, "always"),  # in memory as they are
        ((1 * GIB, 3 * GIB), None, 1, "auto"),  # training images alone: no value says so
        (None, None, 1, "auto"),  # masks and boxes
    ],
)
def test_images_are_kept_in_memory_where_they_fit(decoded, array, processes, kept):
    facts = Facts(
        data=SetFacts("classify", samples=1000, array=array, decoded=decoded),
        machine=MachineFacts(gpu=False, cores=2, processes=processes),
    )
    record = []
    config = decide(TrainConfig(), facts, MEMORY_RULES, record=record)
    assert config.data.resident == kept
    (one,) = record
    assert (one.setting, one.value) == ("data.resident", kept)
    assert "inf" not in one.why
    assert decided_later(record, config) == ([one] if kept == "auto" else [])


def test_what_is_known_only_later_has_a_reason_that_says_when():
    record = []
    config = decide(TrainConfig(), Facts(machine=CPU), rules(), record=record)
    (one,) = decided_later(record, config)
    assert (one.setting, one.value, config.engine.kernels) == ("engine.kernels", "auto", "auto")
    assert "once the model is built" in one.why
    assert one not in beside_recipe(record, config)
    named = decide(TrainConfig(), Facts(machine=MachineFacts(gpu=True, cores=2, kernels="-gelu")), rules())
    assert named.engine.kernels == "-gelu"
