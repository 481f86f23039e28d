import json
from importlib import resources

import pytest
import yaml

from saccade.settings import TrainConfig, flatten, to_yaml
from saccade.settings.json_schema import json_schema
from saccade.settings.recipes import list_recipes
from saccade.settings.schema import FIELDS, HINTS, RANGES, help_of


def shipped():
    return json.loads((resources.files("saccade.settings") / "schema.json").read_text())


def test_the_schema_that_is_shipped_is_that_of_the_settings():
    assert shipped() == json_schema(), "python -m saccade.settings.json_schema > src/saccade/settings/schema.json"


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_says_at_its_field_what_it_is(name):
    assert len(FIELDS[name].metadata["help"].split()) >= 1
    assert HINTS[name] is not None
    group, _, own = name.rpartition(".")
    place = shipped()["properties"]
    place = place[group]["properties"] if group else place
    assert FIELDS[name].metadata["help"] in place[own]["description"]
    assert place[own]["default"] == flatten(TrainConfig())[name]


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
    for group, name, value in (("optim", "lr", -1.0), ("optim", "lrr", 1.0), ("augment", "crop", "round")):
        assert not validator.is_valid({**settings, group: {**settings[group], name: value}}), name
    assert len(RANGES) > 50
