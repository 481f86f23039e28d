import pytest
import yaml

from saccade.config import ConfigError, TrainConfig, flatten, overlay, parse_settings, read_yaml, to_yaml


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
        ({"optim.layer_deccay": 0.7}, ["no setting 'optim.layer_deccay'", "did you mean 'optim.layer_decay'"]),
        ({"lr": 1.0}, ["did you mean 'optim.lr'"]),
        ({"zebra": 1}, ["no setting 'zebra'", "here are seed"]),
        ({"optim.lr": "fast"}, ["optim.lr = 'fast' (str)", "a number"]),
        ({"schedule.epochs": 2.5}, ["whole number"]),
        ({"schedule.epochs": True}, ["whole number"]),
        ({"augment.crop": "round"}, ["'pad' or 'resized' or 'none'"]),
        ({"optim": 3}, ["group of settings"]),
        ({"optim.batch_size": 0}, ["optim.batch_size = 0", "at least 1"]),
        ({"optim.lr": -1}, ["positive"]),
        ({"keep.ema": 1.5}, ["between 0 and 1"]),
        ({"augment.rand_ops": 9}, ["from 0 to 8"]),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(values, words):
    with pytest.raises(ConfigError) as error:
        overlay(TrainConfig(), values, source="the command")
    assert all(word in str(error.value) for word in words), error.value


def test_settings_of_the_command_are_read_as_yaml():
    read = parse_settings(["optim.lr=1e-3", "optim.clip=null", "model.options.dims=[8, 16]", "data.path=a b"])
    assert read == {"optim.lr": 1e-3, "optim.clip": None, "model.options.dims": [8, 16], "data.path": "a b"}
    assert overlay(TrainConfig(), read).model.options == {"dims": [8, 16]}


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
