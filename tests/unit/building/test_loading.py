import pytest

from saccade.building import loading
from saccade.building.loading import find_target, open_model
from saccade.building.pretrained import open_timm
from saccade.deployment.export import _name
from saccade.evaluation.speed import find_raced
from saccade.models import CheckpointError
from saccade.settings import ConfigError
from support.exports import tiny_run


def test_a_short_name_stands_for_the_full_one_as_in_training():
    assert find_target("vit_tiny") == "vit_tiny_patch16_224"
    assert find_target("swin_tiny") == "swin_tiny_patch4_window7_224"
    assert find_target("resnet18.a1_in1k") == "resnet18.a1_in1k"


def test_a_path_stays_as_it_was_given(tmp_path):
    run = tiny_run(tmp_path / "run")
    assert find_target(run) == str(run)
    assert find_target(run / "model.safetensors") == str(run / "model.safetensors")


def test_a_folder_goes_before_a_model_of_that_name(tmp_path, monkeypatch):
    tiny_run(tmp_path / "vit_tiny")
    monkeypatch.chdir(tmp_path)
    assert find_target("vit_tiny") == "vit_tiny"


def test_what_is_not_there_is_told_with_what_is_near_and_what_may_be_given():
    with pytest.raises(CheckpointError, match=r"no model of that name \(close matches: .*nommer_tiny.*give a run dir"):
        find_target("nomer_tiny")
    with pytest.raises(CheckpointError, match="give an image, the name of a timm model"):
        find_target("nowhere/at/all", allowed="an image")


def test_a_folder_without_weights_says_what_it_is_and_how_to_go_on(tmp_path):
    with pytest.raises(CheckpointError, match="so it is not a run"):
        find_target(tmp_path)
    (tmp_path / "comparison.json").touch()
    with pytest.raises(CheckpointError, match=rf"give one of its runs in {tmp_path}/runs"):
        find_target(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(CheckpointError, match=rf"resume it with saccade train --resume {tmp_path}$"):
        find_target(tmp_path)


@pytest.mark.parametrize("given", ["timm:vit_tiny_patch16_224", "timm:vit_tiny", "vit_tiny"])
def test_a_name_that_was_given_is_not_taken_for_a_folder_of_the_full_name(given, tmp_path, monkeypatch):
    tiny_run(tmp_path / "vit_tiny_patch16_224")
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr(loading, "open_timm", lambda named: opened.append(named) or (None, None))
    assert open_model(find_target(given)).origin == "timm"
    assert opened == ["vit_tiny_patch16_224"]
    assert find_raced(given) == "timm:vit_tiny_patch16_224"
    assert _name(find_target(given)) == "vit_tiny_patch16_224"
    assert open_model(find_target("vit_tiny_patch16_224")).origin == "run"


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.safetensors", "resnet18.a/b", "resnet18.nope@x"])
def test_an_ending_that_names_no_weights_is_no_model(name):
    with pytest.raises(CheckpointError, match=f"{name} does not exist, and timm has no model of that name"):
        find_target(name)
    with pytest.raises(ConfigError, match=r"timm has no weights '(safetensors|a/b|nope)' for .*@FILE"):
        open_timm(name)
