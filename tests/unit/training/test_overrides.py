"""What a user gives over a recipe: options that are not given stay, what is given wins, and nothing goes twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.comparison.plan.arms import parse_arm
from saccade.settings import ConfigError, TrainConfig
from saccade.settings.named import combine
from saccade.settings.overrides import lay_over, merge, put_on
from saccade.training.recipes import configure, gather_settings

NAMES, KEYS = ("a", "b"), ("x", "y", "z")
TEXTS = st.builds(
    lambda name, options: f"{name}:{','.join(f'{k}={v}' for k, v in options.items())}" if options else name,
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["1", "[0.6,1]", "none"])),
)


def options(text):
    name, _, rest = text.partition(":")
    return name, dict(part.split("=") for part in rest.replace("[0.6,1]", "R").split(",") if part)


@given(TEXTS, TEXTS)
@settings(max_examples=200, deadline=None)
def test_options_given_win_and_the_others_stay_where_the_name_is_the_same(below, above):
    (name, mine), (other, theirs) = options(below), options(above)
    assert options(combine(below, above)) == (other, {**mine, **theirs} if name == other else theirs)
    assert combine(combine(below, above), above) == combine(below, above)  # typing a command again changes nothing


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("detect", "detect:longest=1333,scale=[1,1]"),
        ("detect:least=0.2", "detect:longest=1333,scale=[1,1],least=0.2"),
        ("detect:scale=[0.6,1]", "detect:longest=1333,scale=[0.6,1]"),
        ("segment:crop=64", "segment:crop=64"),
    ],
)
def test_options_of_a_task_are_laid_over_the_recipes(task, expected):
    assert configure("detect_1x", {"task": task}).task == expected


def test_another_task_leaves_the_recipes_head_behind():
    assert configure("detect_1x", {"task": "segment"}).model.head is None


def test_a_head_of_the_same_name_keeps_the_recipes_options():
    assert configure("segment", {"model.head": "upernet:aux=32"}).model.head == "upernet:width=128,aux=32"
    assert configure("segment", {"model.head": "fpn"}).model.head == "fpn"


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ([], ["drloc"]),
        (["broadcast"], ["drloc", "broadcast"]),
        (["drloc:weight=0.3"], ["drloc:weight=0.3"]),
        (["none"], []),
        (["none", "broadcast"], ["broadcast"]),
    ],
)
def test_plugins_given_are_added_to_the_recipes(plugins, expected):
    assert configure("drloc", gather_settings(plugins=plugins)).model.plugins == expected


def test_the_setting_gives_the_whole_list_of_plugins():
    assert configure("drloc", {"model.plugins": []}).model.plugins == []
    both = gather_settings(plugins=["squeeze"]) | {"model.plugins": ["broadcast"]}
    assert configure("drloc", both).model.plugins == ["broadcast", "squeeze"]


@pytest.mark.parametrize(
    "twice", [gather_settings(plugins=["drloc", "drloc:weight=1"]), {"model.plugins": ["drloc", "drloc"]}]
)
def test_a_plugin_given_twice_is_refused(twice):
    with pytest.raises(ConfigError, match=r"drloc.* twice"):
        configure("small", twice)


def test_a_flag_is_no_name_of_a_setting():
    with pytest.raises(ConfigError, match="unknown setting 'plugins'"):
        configure("drloc", {"plugins": ["broadcast"]})


def test_laying_the_same_over_again_changes_nothing():
    for texts in (["none", "broadcast"], ["drloc:pairs=3"], ["squeeze", "broadcast"]):
        given = gather_settings(plugins=texts, task="classify")
        once = configure("drloc", given)
        assert lay_over(once, given, source="again") == once


def test_a_group_written_whole_is_read_like_its_settings():
    whole = configure("small", {"optim": {"lr": 0.01}, "augment": {"mixup": 0.5}})
    assert whole == configure("small", {"optim.lr": 0.01, "augment.mixup": 0.5})
    assert whole.optim.least_steps is None


def test_a_warm_up_in_epochs_takes_the_place_of_the_recipes_steps():
    schedule = configure("segment_cb", {"schedule.warmup": 2}).schedule
    assert (schedule.warmup, schedule.warmup_steps) == (2, None)


# In a comparison an arm has what all arms have and what it names


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("base", []),
        ("drloc", ["drloc"]),
        ("drloc:weight=0.2", ["drloc:weight=0.2"]),
        ("broadcast", ["broadcast"]),
        ("drloc+broadcast", ["drloc", "broadcast"]),
        ("recipe=drloc", ["drloc"]),
        ("recipe=drloc+broadcast", ["drloc", "broadcast"]),
    ],
)
def test_an_arm_has_the_plugins_that_it_names_and_none_of_the_common_recipes(arm, expected):
    assert parse_arm(arm).configure("drloc", {}).model.plugins == expected


def test_an_arm_that_names_the_recipes_plugin_has_the_recipes_options():
    assert parse_arm("token_label").configure("token_label_paper", {}).model.plugins == ["token_label:mix_token=false"]
    changed = parse_arm("token_label:mix_token=true").configure("token_label_paper", {})
    assert changed.model.plugins == ["token_label:mix_token=true"]


def test_an_arm_that_adds_what_all_arms_have_is_refused():
    with pytest.raises(ConfigError, match=r"model\.plugins gives drloc to all arms"):
        parse_arm("drloc").configure("small", {"model.plugins": ["drloc"]})


def test_an_arms_options_are_laid_over_those_of_all_arms():
    shared = {"task": "detect:least=0.2", "model.options": {"dims": [8, 16]}}
    config = parse_arm("task=detect:kept=50,model.options={depths: [1, 1]}").configure("detect", shared)
    assert config.task == "detect:least=0.2,kept=50"
    assert config.model.options == {"dims": [8, 16], "depths": [1, 1]}


@given(st.lists(TEXTS, max_size=2), st.lists(TEXTS, max_size=2))
@settings(max_examples=100, deadline=None)
def test_no_plugin_is_ever_put_on_twice(below, added):
    below = list({text.partition(":")[0]: text for text in below}.values())
    added = list({text.partition(":")[0]: text for text in added}.values())
    names = [text.partition(":")[0] for text in put_on(below, added)]
    assert len(names) == len(set(names))
    assert {text.partition(":")[0] for text in [*below, *added]} == set(names)


def test_settings_laid_over_settings_are_those_laid_over_a_recipe_in_turn():
    first, second = {"task": "detect:least=0.2"}, {"task": "detect:kept=50", "optim.lr": 1.0}
    config = TrainConfig(task="detect:scale=[1,1]")
    in_turn = lay_over(lay_over(config, first, source=""), second, source="")
    assert lay_over(config, merge(first, second), source="") == in_turn


@pytest.mark.parametrize(
    ("flags", "settings", "told"),
    [
        ({"lr": 0.1}, {"optim.lr": 0.2}, r"lr=0\.1 and the setting optim\.lr=0\.2"),
        ({"epochs": 5}, {"schedule": {"epochs": 6}}, r"epochs=5 and the setting schedule\.epochs=6"),
        ({"task": "detect:least=0.2"}, {"task": "detect"}, "task="),
        ({"columns": "label=breed"}, {"data.columns": {"label": "kind"}}, "columns="),
    ],
)
def test_one_setting_given_in_two_ways_is_refused_where_they_differ(flags, settings, told):
    with pytest.raises(ConfigError, match=f"{told}.*give one of them"):
        gather_settings(settings, **flags)


def test_one_setting_given_twice_alike_is_taken():
    assert gather_settings({"optim.lr": 0.1}, lr=0.1) == {"optim.lr": 0.1}
    assert gather_settings({"optim": {"lr": 0.1}}, epochs=5) == {"optim.lr": 0.1, "schedule.epochs": 5}
