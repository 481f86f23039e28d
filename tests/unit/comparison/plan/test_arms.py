import re
from pathlib import Path

import pytest

from saccade.building.build import PLUGINS
from saccade.comparison.plan.arms import parse_arm, parse_arms, reference_of, split
from saccade.comparison.run.folder import config_hash, slug
from saccade.settings import ConfigError


def test_base_changes_nothing():
    arm = parse_arm("base")
    assert (arm.name, arm.plugins, dict(arm.settings), arm.recipe) == ("base", (), {}, None)


def test_a_sum_of_plugins_and_settings_keeps_their_order():
    arm = parse_arm("broadcast + drloc:weight=0.3,pairs=32+lr=0.003,optim.weight_decay=0.1")
    assert arm.plugins == ("broadcast", "drloc:weight=0.3,pairs=32")
    assert arm.settings == {"optim.lr": 0.003, "optim.weight_decay": 0.1}


def test_a_name_of_its_own():
    arm = parse_arm("two blocks:=model=glnet_stl+recipe=small")
    assert (arm.name, arm.text, arm.recipe) == ("two blocks", "model=glnet_stl+recipe=small", "small")
    assert arm.settings == {"model.name": "glnet_stl"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("optim.lr=1e+3+broadcast", ["optim.lr=1e+3", "broadcast"]),
        ("optim.lr=1.E+3", ["optim.lr=1.E+3"]),
        ("augment.scale=[1, 2+3]+a", ["augment.scale=[1, 2+3]", "a"]),
        ("data.val='a+b'+c", ["data.val='a+b'", "c"]),
        ("broadcase+3", ["broadcase", "3"]),
    ],
)
def test_plus_inside_brackets_quotes_and_numbers_joins_nothing(text, parts):
    assert split(text, "+") == parts


def test_values_are_read_as_in_yaml():
    arm = parse_arm("augment.scale=[0.3, 1.0],model.options={depths: [1, 2]},keep.ema=null")
    assert arm.settings == {"augment.scale": [0.3, 1.0], "model.options": {"depths": [1, 2]}, "keep.ema": None}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("brodcast", "choose from broadcast"),
        ("broadcast+", "An arm is 'base'"),
        ("drloc:wait=1", "weight"),
        ("drloc:weight=1,optim.lr=0.1", "joined by +"),
        ("optim.lrr=1", "optim.lr"),
        ("lr=fast", "a number"),
        ("lr=1,3", "An arm is 'base'"),
        ("lr=1+optim.lr=2", "twice"),
        ("seed=3", "same seeds"),
        (":=broadcast", "names consist of letters"),
        ("", "An arm is 'base'"),
    ],
)
def test_a_wrong_arm_is_refused_with_what_is_allowed(text, told):
    with pytest.raises(ConfigError) as error:
        parse_arm(text)
    assert told in str(error.value)


@pytest.mark.parametrize("text", ["brodcast", "drloc:wait=1", "broadcast+", "lr=1,3"])
def test_plugins_are_listed_once_in_a_message(text):
    with pytest.raises(ConfigError) as error:
        parse_arm(text)
    assert str(error.value).count(", ".join(sorted(PLUGINS))) == 1


def test_the_document_names_every_plugin():
    text = (Path(__file__).parents[4] / "docs" / "compare.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| `broadcast` |"))
    assert set(re.findall(r"`(\w+)`", row)) == set(PLUGINS)


def test_fewer_than_two_arms_and_names_twice_are_refused():
    with pytest.raises(ConfigError, match="two or more"):
        parse_arms(["broadcast"])
    with pytest.raises(ConfigError, match="named 'broadcast'"):
        parse_arms(["broadcast", "broadcast"])
    with pytest.raises(ConfigError, match="expected a list"):
        parse_arms("broadcast")
    assert [arm.name for arm in parse_arms(["broadcast", "again:=broadcast"])] == ["broadcast", "again"]


def test_the_reference_is_base_wherever_it_stands_else_the_first():
    assert reference_of(parse_arms(["broadcast", "base"])).name == "base"
    assert reference_of(parse_arms(["drloc", "broadcast"])).name == "drloc"


def test_plugins_come_after_those_of_all_arms_and_settings_over_them():
    shared = {"model.plugins": ["squeeze"], "optim.lr": 0.1, "schedule.epochs": 3}
    config = parse_arm("broadcast+lr=0.2").configure("small", shared)
    assert config.model.plugins == ["squeeze", "broadcast"]
    assert (config.optim.lr, config.schedule.epochs) == (0.2, 3)


def test_an_unknown_recipe_names_the_arm():
    with pytest.raises(ConfigError, match="arm 'x': unknown recipe 'huge'"):
        parse_arm("x:=recipe=huge").configure(None, {})


def test_hash_ignores_seed_and_machine_and_nothing_else():
    base = parse_arm("base").configure(None, {})
    same = parse_arm("x:=engine.threads=3,keep.every_steps=5").configure(None, {"seed": 7, "engine.device": "cpu"})
    assert config_hash(base) == config_hash(same)
    others = ["lr=0.5", "broadcast", "drloc:pairs=3", "epochs=3", "keep.ema=null", "data.train_limit=9"]
    digests = {config_hash(parse_arm(text).configure(None, {})) for text in [*others, "base"]}
    assert len(digests) == 7


def test_slugs_are_names_that_file_systems_take():
    assert slug("drloc:weight=0.3+lr=1/2") == "drloc-weight-0.3-lr-1-2"
    assert slug("???") == "arm"
