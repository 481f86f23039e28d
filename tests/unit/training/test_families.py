import pytest
import timm
import torch

from saccade.settings import TrainConfig, overlay
from saccade.settings.decisions import Decision, decide
from saccade.settings.facts import Facts, ModelFacts
from saccade.settings.families import family_of
from saccade.settings.fitting import FOUND
from saccade.settings.recipes import list_recipes
from saccade.tasks.opening import open_samples
from saccade.training import fitting
from saccade.training.facts import is_filled
from saccade.training.families import family_notes
from saccade.training.fitting import find_rate
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.trial import Trial
from support.training import TINY

PATCHES = [rule for rule in FOUND if rule.name == "patches-of-small-images"]


def small_options(config, name, side):
    """Return the options that images of a side give a model."""
    asked = overlay(config, {"data.img_size": side, "model.name": name})
    facts = Facts(model=ModelFacts(name), filled=is_filled(config))
    options = decide(asked, facts, PATCHES).model.options
    return {key: value for key, value in options.items() if key not in config.model.options}


FAMILIES = {
    "vit_tiny_patch16_224": "vit",
    "deit_small_patch16_224": "vit",
    "swin_tiny_patch4_window7_224": "swin",
    "pit_ti_224": "pit",
    "mixer_s16_224": "mixer",
    "convnext_atto": "convnext",
    "resnet18": "resnet",
    "efficientnet_b0": "efficientnet",
    "glnet_nano": "glnet",
    "nommer_tiny": "nommer",
    "sot_7": "sot",
    "cvt_13": "cvt",
    "t2t_vit_7": "t2t",
}


@pytest.mark.parametrize(("model", "family"), FAMILIES.items())
def test_every_family_has_settings_that_can_be_trained_with(model, family):
    assert timm.is_model(model)
    found = family_of("small", model)
    assert found is not None
    assert found.name == family
    assert found.measured
    config = configure("small", {"model.name": model})
    assert overlay(config, found.settings) == config


def test_naming_a_model_takes_its_familys_numbers_and_what_the_user_gives_wins():
    assert configure("small", {}).optim.lr == 2e-3
    assert configure("small", {"model.name": "vit_tiny"}).optim.lr < 2e-3
    assert configure("small", {"model.name": "vit_tiny", "optim.lr": 0.03}).optim.lr == 0.03
    assert configure("deit", {"model.name": "vit_tiny"}).optim.lr == 1e-3  # a paper's recipe stays the paper's
    assert "families" not in list_recipes()


def test_a_run_says_in_one_line_what_it_took():
    config = configure("small", {"model.name": "vit_tiny"})
    (note,) = family_notes(config, [Decision("model.options", {"patch_size": 4}, {}, "family", PATCHES[0].name, "")])
    assert note.startswith("defaults for vit models: optim.lr=")
    assert "patch_size=4" in note
    assert family_notes(configure("small", {"model.name": "vit_tiny", "optim.lr": 0.03}), []) == []
    assert family_notes(configure("small", {"model.name": "regnety_002"}), []) == []


@pytest.mark.parametrize(("side", "patch"), [(32, 4), (28, 4), (64, 8), (48, 6)])
def test_small_images_get_patches_enough(side, patch):
    config = configure("small", {"model.name": "vit_tiny"})
    assert small_options(config, "vit_tiny_patch16_224", side) == {"patch_size": patch}


@pytest.mark.parametrize(("side", "patch", "stride"), [(28, 4, 2), (32, 4, 2), (64, 8, 4)])
def test_overlapping_patches_of_small_images_have_smaller_strides(side, patch, stride):
    options = small_options(configure("small", {"model.name": "pit_ti_224"}), "pit_ti_224", side)
    assert options == {"patch_size": patch, "stride": stride}
    model = timm.create_model("pit_ti_224", img_size=side, **options)
    assert model(torch.zeros(1, 3, side, side)).shape == (1, 1000)


def test_patches_stay_where_images_are_large_or_the_user_chose():
    name = "vit_tiny_patch16_224"
    config = configure("small", {"model.name": "vit_tiny"})
    assert small_options(config, name, 96) == {}
    assert small_options(configure("small", {"model.name": name, "model.options": {"depth": 2}}), name, 32) == {}
    assert small_options(configure("small", {"model.name": name, "model.checkpoint": "x"}), name, 32) == {}
    assert small_options(configure("deit", {"model.name": name}), name, 32) == {}
    begun = overlay(config, {"data.mean": [0.5] * 3, "engine.compile": False})  # a run from before, resumed
    assert small_options(begun, name, 32) == {}


def test_a_vit_on_small_images_is_resolved_with_small_patches_and_says_so():
    config = configure("small", {"model.name": "vit_tiny", "data.train_limit": 32})
    choice, data = open_samples(None, config.data)
    resolved, spec = resolve(config, choice, data, torch.device("cpu"))
    assert resolved.model.options == {"patch_size": 4}
    assert any("defaults for vit models" in note for note in spec.notes)
    assert timm.create_model(resolved.model.name, img_size=28, **resolved.model.options).patch_embed.num_patches == 49


def test_an_unknown_family_gets_the_rate_that_did_best(monkeypatch):
    given = {**TINY, "model.name": "regnety_002", "model.options": {}, "data.train_limit": 2000, "schedule.epochs": 400}
    tried = []

    def trial(config, *_, **__):
        tried.append(config.optim.lr)
        return Trial(None if config.optim.lr > 3e-3 else 1 - abs(config.optim.lr - 5e-4))

    monkeypatch.setattr(fitting, "run_trial", trial)
    config, (note,) = find_rate(configure("small", given), given)
    assert config.optim.lr == 5e-4
    assert len(tried) == 5
    assert "was the best of 4 tried" in note
    assert "learning rate 0.0005 was the best" in note


@pytest.mark.parametrize(
    "given",
    [{"model.name": "vit_tiny"}, {"model.name": "regnety_002", "optim.lr": 1e-3}, {"model.name": "glnet_nano"}],
)
def test_nothing_is_tried_for_known_families_or_given_rates(given, monkeypatch):
    monkeypatch.setattr(fitting, "open_samples", None)
    config = configure("small", given)
    assert find_rate(config, given) == (config, [])
    own = TrainConfig(recipe=None)
    assert find_rate(own, {}) == (own, [])


def test_a_run_too_short_to_try_rates_says_so():
    given = {**TINY, "model.name": "regnety_002", "model.options": {}, "schedule.epochs": 2}
    config, (note,) = find_rate(configure("small", given), given)
    assert config.optim.lr == 2e-3
    assert "saccade tune" in note
