import json
from importlib import resources

import pytest
import yaml

from saccade.settings import TrainConfig, flatten, to_yaml
from saccade.settings.help import help_of
from saccade.settings.json_schema import json_schema
from saccade.settings.recipes import list_recipes


def shipped():
    return json.loads((resources.files("saccade.settings") / "schema.json").read_text())


def test_the_schema_that_is_shipped_is_that_of_the_settings():
    assert shipped() == json_schema(), "python -m saccade.settings.json_schema > src/saccade/settings/schema.json"


@pytest.mark.parametrize("name", flatten(TrainConfig()))
def test_every_setting_says_at_its_field_what_it_is(name):
    group, _, own = name.rpartition(".")
    place = shipped()
    place = place["$defs"][f"{group.title()}Config"] if group else place
    about = place["properties"][own]
    assert help_of(name, default="") == about["description"] != ""
    if "default" in about:
        assert about["default"] == flatten(TrainConfig())[name]


def test_a_flag_says_what_holds_without_it():
    assert help_of("optim.lr").endswith("(default: from the recipe and model family; lower for small datasets)")
    assert help_of("optim.lr", default="as for train") == "peak learning rate (default: as for train)"


@pytest.fixture
def validator():
    return pytest.importorskip("jsonschema_rs").validator_for(shipped())


@pytest.mark.parametrize("name", list_recipes())
def test_recipes_are_valid_by_it(name, validator):
    text = (resources.files("saccade.recipes") / f"{name}.yaml").read_text()
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


def test_a_runs_settings_are_valid_by_it_and_mistakes_are_not(validator):
    settings = yaml.safe_load(to_yaml(TrainConfig()))
    assert validator.is_valid(settings)
    for group, name, value in (
        ("optim", "lr", -1.0),
        ("optim", "lrr", 1.0),
        ("optim", "betas", [0.9]),
        ("augment", "crop", "round"),
        ("augment", "scale", [0.5, 1.5]),
    ):
        assert not validator.is_valid({**settings, group: {**settings[group], name: value}}), name
