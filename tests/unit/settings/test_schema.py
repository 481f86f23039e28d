import dataclasses
import math
import re
import typing

import numpy as np
import pytest
import yaml

from saccade.settings import ConfigError, TrainConfig, flatten, overlay, parse_settings, read_value, read_yaml, to_yaml
from saccade.settings.aliases import ALIASES
from saccade.settings.kinds import Items, NotNegativeOrInfinite, leaves_of, range_of, say_range
from saccade.settings.values import require_number


def leaves(kind=TrainConfig, prefix=""):
    """Yield every setting by dotted name, with the types that it takes."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", leaves_of(hint)


RANGES = {
    name: next(kind for kind in kinds if say_range(kind)) for name, kinds in leaves() if any(map(say_range, kinds))
}


def test_settings_survive_the_way_through_yaml():
    config = overlay(TrainConfig(), {"optim.lr": 3e-4, "model.plugins": ["drloc:weight=0.3"], "keep.ema": 0.99})
    again = overlay(TrainConfig(), read_yaml(to_yaml(config), source="text"), source="text")
    assert again == config


def test_nested_and_dotted_names_mean_the_same():
    assert overlay(TrainConfig(), {"optim": {"lr": 0.5}}) == overlay(TrainConfig(), {"optim.lr": 0.5})


def test_an_overlay_leaves_the_original_alone():
    config = TrainConfig()
    overlay(config, {"optim.lr": 0.5})
    assert config.optim.lr == TrainConfig().optim.lr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optim.layer_deccay": 0.7}, ["unknown setting 'optim.layer_deccay'", "did you mean 'optim.layer_decay'"]),
        ({"lr": 1.0}, ["did you mean 'optim.lr'"]),
        ({"zebra": 1}, ["unknown setting 'zebra'", "choose from seed"]),
        ({"optim.lr": "fast"}, ["optim.lr = 'fast' (str)", "a number"]),
        ({"schedule.epochs": 2.5}, ["whole number"]),
        ({"schedule.epochs": True}, ["whole number"]),
        ({"augment.crop": "round"}, ["'pad' or 'resized' or 'none'"]),
        ({"optim": 3}, ["group of settings"]),
        ({"optim.batch_size": 0}, ["optim.batch_size = 0", "from 1 to 2147483647"]),
        ({"optim.lr": -1}, ["positive"]),
        ({"keep.ema": 1.5}, ["between 0 and 1"]),
        ({"augment.rand_ops": 9}, ["from 0 to 8"]),
        ({"optim.lr": np.True_}, ["optim.lr = ", "a number"]),
        ({"schedule.epochs": np.True_}, ["schedule.epochs = ", "whole number"]),
        ({"optim.lr": b"1"}, ["optim.lr = b'1' (bytes)", "a number"]),
        ({"model.plugins": {"drloc", "broadcast"}}, ["model.plugins = ", "(set)", "a list of strings"]),
        ({"augment.scale": {0.1, 0.9}}, ["augment.scale = ", "(set)", "a list of numbers"]),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(values, words):
    with pytest.raises(ConfigError) as error:
        overlay(TrainConfig(), values, source="the recipe")
    assert all(word in str(error.value) for word in words), error.value


def test_settings_of_the_command_are_read_as_yaml():
    read = parse_settings(["optim.lr=1e-3", "optim.clip=null", "model.options.dims=[8, 16]", "data.path=a b"])
    assert read == {"optim.lr": 1e-3, "optim.clip": None, "model.options.dims": [8, 16], "data.path": "a b"}
    assert overlay(TrainConfig(), read).model.options == {"dims": [8, 16]}


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"drop_path": 2}, "model.drop_path = 2 was given; it must be from 0 to below 1, or null"),
        ({"nam": "x"}, "unknown setting model.nam; choose from model.name"),
        (3, "model = 3 was given; it is a group of settings: name one in it, e.g. model.name"),
        ({1: 2}, "model = {1: 2} was given; it is a group of settings"),
    ],
)
def test_a_mistake_in_a_mapping_for_a_group_is_named(model, told):
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        TrainConfig(model=model)


def test_numbers_of_numpy_become_pythons_own():
    config = overlay(TrainConfig(), {"optim.lr": np.float32(0.5), "optim.batch_size": np.int64(8)})
    assert (type(config.optim.lr), type(config.optim.batch_size)) == (float, int)
    options = {"depth": np.int64(2), "dims": [np.int64(8), 16], "rates": np.array([0.5]), "more": {"on": np.True_}}
    config = overlay(TrainConfig(), {"model.options": options})
    assert overlay(TrainConfig(), read_yaml(to_yaml(config), source="x")) == config
    assert config.model.options == {"depth": 2, "dims": [8, 16], "rates": [0.5], "more": {"on": True}}


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_a_name_of_another_library_suggests_the_setting(alias):
    *groups, last = (setting := ALIASES[alias]).split(".")
    config = TrainConfig()
    for group in groups:
        config = getattr(config, group) if dataclasses.is_dataclass(config) else config
    if dataclasses.is_dataclass(config):  # what a dictionary such as model.options takes is up to the model
        assert hasattr(config, last)
        assert alias not in {name.rpartition(".")[2] for name in flatten(TrainConfig())} - {last}
    for name in (alias, f"optim.{alias}"):
        if name not in flatten(TrainConfig()):
            with pytest.raises(ConfigError, match=f"unknown setting '{name}'; did you mean '{setting}'?"):
                overlay(TrainConfig(), {name: 1}, source="")


@pytest.mark.parametrize("text", ["optim.lr", "=3", "optim.lr=[1"])
def test_a_malformed_setting_is_refused(text):
    with pytest.raises(ConfigError):
        parse_settings([text])


@pytest.mark.parametrize("text", ["- a\n- b", "a: [1", "3"])
def test_a_file_that_holds_no_settings_is_refused(text):
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        read_yaml(text, source="recipe.yaml")


def test_every_leaf_is_plain_data():
    leaves = flatten(TrainConfig())
    assert yaml.safe_load(to_yaml(TrainConfig()))["optim"]["lr"] == leaves["optim.lr"]
    assert "augment.mixup" in leaves


def numbers(config, prefix=""):
    """Yield the names of all settings that take a number or a list of them."""
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from numbers(value, f"{prefix}{name}.")
        elif {int, float, list[float]} & {hint, *typing.get_args(hint)}:
            yield f"{prefix}{name}"


def test_every_number_has_a_range_and_every_range_a_number():
    assert sorted(numbers(TrainConfig())) == sorted(RANGES)


OUTSIDE = {
    "seed": [-1, 2**31],
    "data.val_share": [0, 1, -0.1],
    "data.split_seed": [-1],
    "data.folds": [1, 0, 1001],
    "data.fold": [-1, 1000],
    "model.freeze": [-0.1, 1],
    "schedule.head_epochs": [-1],
    "data.img_size": [0, -1, 10**9],
    "data.mean": [[], [0.5, 0.5], [124.0, 117.0, 104.0], [math.nan]],
    "data.std": [[0.0, 0.0, 0.0], [-0.1], [58.0]],
    "data.workers": [-1, 10**6],
    "data.buffer": [0],
    "data.bad_limit": [-0.1, 1.1],
    "data.train_limit": [0, -5],
    "model.drop_path": [-0.1, 1.0],
    "augment.pad": [-0.1, 1.5],
    "augment.scale": [[0.5], [0.0, 1.0], [1.0, 0.5], [0.5, 1.5], [0.1, 0.2, 0.3]],
    "augment.ratio": [[0.0, 1.0], [2.0, 1.0], [1.0, math.inf]],
    "augment.flip": [-0.1, 1.1],
    "augment.rand_ops": [-1, 9],
    "augment.rand_magnitude": [-1, 11],
    "augment.rand_spread": [-1, math.inf],
    "augment.rand_prob": [-0.1, 1.1],
    "augment.jitter": [-0.1, 1.1],
    "augment.distort": [-0.1, 1.1],
    "augment.erase": [-0.1, 3.0],
    "augment.mixup": [-0.1],
    "augment.cutmix": [-0.1],
    "augment.mix_prob": [-0.1, 1.1],
    "augment.switch_prob": [-0.1, 1.1],
    "augment.repeats": [0],
    "augment.off_epochs": [-1],
    "augment.full_epochs": [0],
    "optim.lr": [0, -1, math.inf],
    "optim.lr_batch": [0, -128],
    "optim.batch_size": [0, 10**12],
    "optim.accumulate": [0],
    "optim.least_steps": [-1],
    "optim.weight_decay": [-0.1],
    "optim.momentum": [-0.1, 1.0],
    "optim.betas": [[0.9, 1.0], [-0.1, 0.9], [0.9], []],
    "optim.eps": [0, -1],
    "optim.layer_decay": [0, 1.1],
    "optim.new_scale": [0, -1],
    "optim.clip": [0, -1.0],
    "schedule.epochs": [0, -1],
    "schedule.warmup": [-1],
    "schedule.warmup_lr": [-1],
    "schedule.min_lr": [-1],
    "schedule.patience": [0, -1],
    "schedule.power": (0, -1, math.inf),
    "schedule.falls": [[], [0.0], [1.0], [0.9, 0.5]],
    "schedule.steps": (0, 2**31),
    "schedule.warmup_share": (-0.1, 1.1),
    "schedule.warmup_steps": (-1, 2**31),
    "loss.smoothing": [-0.1, 1.0],
    "loss.class_weights": [[1.0, -1.0], [0.0, 0.0], [1.0, 0.0], [], [math.nan, 1.0]],
    "engine.threads": [0, -1],
    "keep.ema": [0, 1],
    "keep.every_steps": [0, -1],
    "keep.every_seconds": [-1],
    "keep.states": [0],
    "keep.evaluate_every": [0, -1],
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_out_of_its_range_is_refused_with_the_range(name):
    for value in (*OUTSIDE[name], math.nan):
        with pytest.raises(ConfigError) as error:
            overlay(TrainConfig(), {name: value})
        assert name in str(error.value)
        told = str(error.value)
        assert say_range(RANGES[name]) in told or "it takes" in told, told


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_a_range_are_taken_where_they_belong_to_it(name):
    kind = RANGES[name]
    items = range_of(kind) if isinstance(range_of(kind), Items) else None
    each = range_of(typing.get_args(typing.get_args(kind)[0])[0] if items else kind)
    ends = [0] if kind == NotNegativeOrInfinite else [end for end in (each.ge, each.le) if end is not None]
    for end in ends or [each.gt + 0.5]:
        value = [float(end)] * (items.lengths or (2,))[-1] if items else end
        assert flatten(overlay(TrainConfig(), {name: value}))[name] == value


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"optim.clip": -1.0}, "optim.clip = -1.0 was given; it must be a positive number, or null"),
        ({"keep.ema": 1.0}, "it must be between 0 and 1, both exclusive, or null"),
        ({"loss.smoothing": 1.0}, "it must be from 0 to below 1"),
        ({"augment.scale": [0.0, 1.0]}, "a list of 2 numbers, each above 0 and at most 1, the smaller first"),
        ({"loss.class_weights": [0.0]}, "each a positive number, or 'none' or 'balanced'"),
        ({"keep.every_seconds": math.nan}, "it must be zero or more, or infinity"),
    ],
)
def test_a_range_is_told_in_plain_words(values, told):
    with pytest.raises(ConfigError) as error:
        overlay(TrainConfig(), values)
    assert str(error.value).endswith(told)


def test_states_by_time_can_be_turned_off():
    config = overlay(TrainConfig(), {"keep.every_seconds": math.inf})
    assert overlay(TrainConfig(), read_yaml(to_yaml(config), source="text")).keep.every_seconds == math.inf


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_number_too_large_for_any_setting_is_refused(value):
    for name in ("optim.lr", "optim.batch_size", "schedule.epochs"):
        with pytest.raises(ConfigError, match=name):
            overlay(TrainConfig(), {name: value})


@pytest.mark.parametrize("values", [{"optim": 3, "optim.lr": 1.0}, {"model.options": 3, "model.options.dims": 1}])
def test_a_group_and_a_name_inside_it_do_not_go_together(values):
    with pytest.raises(ConfigError, match="were given"):
        overlay(TrainConfig(), values)


@pytest.mark.parametrize("text", ["2001-99-99", "[" * 5000, "[1"])
def test_a_value_that_cannot_be_read_is_refused_in_few_words(text):
    with pytest.raises(ConfigError, match="cannot be read") as error:
        read_value(text)
    assert len(str(error.value)) < 1000


def test_a_flag_out_of_range_is_refused_and_one_not_given_is_not():
    require_number("--parallel", None, 1, 4)
    with pytest.raises(ValueError, match="--parallel 5 was given; it must be from 1 to 4"):
        require_number("--parallel", 5, 1, 4)


def bomb(levels, item="x"):
    lines = [f"l0: &l0 [{item}]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb(12),
        "model:\n  options:\n" + "\n".join(f"    {line}" for line in bomb(12).splitlines()),
        "optim: &a\n  lr: *a",
        "a: &a [*a]",
        "l0: &l0 {a: 1}\n" + "\n".join(f"l{n}: &l{n} {{<<: *l{n - 1}, b{n}: *l{n - 1}}}" for n in range(1, 40)),
    ],
)
def test_aliases_that_stand_for_too_much_are_refused_at_once(text):
    with pytest.raises(ConfigError, match=r"aliases .* expand to more than"):
        read_yaml(text, source="recipe bomb.yaml")


def test_a_few_aliases_are_taken():
    found = read_yaml("augment: &a {flip: 0.5}\nother: *a\nmore: {<<: *a, jitter: 1}", source="it")
    assert found == {"augment": {"flip": 0.5}, "other": {"flip": 0.5}, "more": {"flip": 0.5, "jitter": 1}}


def test_a_text_too_long_for_settings_is_not_read():
    with pytest.raises(ConfigError, match="characters; settings may have at most"):
        read_yaml("a: [" + "1," * 2_000_000 + "]", source="it")


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", 10), ("08", 8), ("0", 0), ("+5", 5), ("0x10", 16), ("1_000", 1000), ("1e3", 1000), ("5", 5)],
)
def test_whole_numbers_are_what_people_read(text, value):
    assert overlay(TrainConfig(), parse_settings([f"seed={text}"])).seed == value


def test_a_recipes_number_with_a_leading_zero_is_refused_and_not_read_to_the_base_of_eight():
    with pytest.raises(ConfigError, match="seed = '010'"):
        overlay(TrainConfig(), read_yaml("seed: 010", source="a recipe"))


@pytest.mark.parametrize("text", ["1:30", "1:30.5", "-1:30"])
def test_minutes_and_seconds_are_no_number(text):
    assert read_value(text) == text
    with pytest.raises(ConfigError, match=r"optim\.batch_size"):
        overlay(TrainConfig(), parse_settings([f"optim.batch_size={text}"]))


@pytest.mark.parametrize("columns", [{"label": True}, {"label": ["a"]}, {1: "a"}])
def test_columns_are_named_by_texts(columns):
    with pytest.raises(ConfigError, match=r"data\.columns"):
        overlay(TrainConfig(), {"data.columns": columns})
