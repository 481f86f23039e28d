"""Files of earlier versions, which left options of models out: they are restored, or it is told what may be wrong."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import saccade
from saccade.building.averaging import average_weights
from saccade.building.build import build_model, load_model
from saccade.building.loading import open_model
from saccade.data.spec import InputSpec
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig, TrainConfig, overlay, to_yaml

SOT = {"depth": 1, "embed_dim": 16, "num_heads": 2, "cov_heads": 2, "cov_dim": 4, "token_embed": "linear"}
LOST = {"num_iter": 3, "normalization": "layer_norm", "centring": "none"}


def forget(file, options=()):
    """Let a file be as earlier versions wrote it: of no version, and without some options."""
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["saccade"])
    del about["version"]
    for option in options:
        del about["model"]["options"][option]
    save_file(load_file(file), file, metadata={"saccade": json.dumps(about)})


def write_run(folder, options, *, name="sot_7", settings=None):
    """Write what a run of an earlier version left; return what its model answers."""
    config = ModelConfig(name=name, options=options)
    spec = InputSpec(("a", "b", "c"), 3, 32, [0.5] * 3, [0.5] * 3)
    model = build_model(config, spec, seed=0).eval()
    folder.mkdir()
    save_model(folder / "model.safetensors", model.state_dict(), config, spec)
    forget(folder / "model.safetensors", [option for option in LOST if option in options])
    said = {"name": name, "options": settings or options}
    (folder / "config.yaml").write_text(to_yaml(overlay(TrainConfig(), {"model": said})))
    return model(images())


def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def opened_quietly(target):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_model(target)[0]


@pytest.mark.parametrize("lost", [{option: value} for option, value in LOST.items()], ids=str)
def test_lost_options_come_from_the_settings_beside_the_file(lost, tmp_path):
    want = write_run(tmp_path / "run", {**SOT, **lost})
    (option,) = lost
    with pytest.warns(UserWarning, match=rf"earlier.*{option}=.* was restored from .*config.yaml.*--resume") as said:
        model, spec = load_model(tmp_path / "run")
    assert torch.equal(model(images()), want)
    assert str(said[0].message) in spec.notes
    with pytest.warns(UserWarning, match="earlier version"):
        assert open_model(tmp_path / "run").notes == tuple(spec.notes)


def test_a_file_that_stands_alone_says_what_may_be_wrong_with_it(tmp_path):
    write_run(tmp_path / "run", {**SOT, "num_iter": 3})
    shutil.move(tmp_path / "run" / "model.safetensors", tmp_path / "alone.safetensors")
    with pytest.warns(UserWarning, match=r"sot_7 was trained with any of .*num_iter.*put the run's config.yaml"):
        load_model(tmp_path / "alone.safetensors")


def test_what_cannot_be_restored_is_told(tmp_path):
    vit = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 8}
    write_run(tmp_path / "run", vit, name="vit_tiny_patch16_224", settings={**vit, "use_naflex": True})
    with pytest.warns(UserWarning, match="use_naflex=True cannot be restored, so the predictions are not those"):
        load_model(tmp_path / "run")


def test_nothing_is_told_of_files_that_lack_nothing(tmp_path):
    want = write_run(tmp_path / "run", SOT, settings={**SOT, "checkpoint_path": "/home/me/x.pth", "num_sv": None})
    assert torch.equal(opened_quietly(tmp_path / "run")(images()), want)
    glnet = {"dims": [16, 32], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2]}
    write_run(tmp_path / "glnet", glnet, name="glnet_nano")
    (tmp_path / "glnet" / "config.yaml").unlink()
    opened_quietly(tmp_path / "glnet")


@pytest.mark.parametrize("text", ["[", "model: 5", "model: {name: sot_7, options: 3}", "x: " + "[" * 9999, "\x00"])
def test_settings_that_cannot_be_read_restore_nothing(text, tmp_path):
    write_run(tmp_path / "run", SOT)
    (tmp_path / "run" / "config.yaml").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_model(tmp_path / "run")


def test_settings_beside_a_file_open_no_file(tmp_path):
    write_run(tmp_path / "run", SOT, settings={**SOT, "checkpoint_path": "/x.pth", "pretrained": True, "alpha": "x"})
    with pytest.warns(UserWarning, match="alpha='x' cannot be restored"):
        load_model(tmp_path / "run")


def test_a_resumed_run_writes_its_file_anew_with_all_options(tmp_path):
    settings = {"data.train_limit": 32, "data.img_size": 32, "optim.batch_size": 16, "engine.device": "cpu"}
    settings |= {"model.options": {**SOT, "num_iter": 3}, "engine.threads": 1}
    run = saccade.train(model="sot_7", epochs=1, out=tmp_path / "run", settings=settings, quiet=True).path
    before = load_model(run)[0](torch.ones(1, 1, 32, 32))
    forget(run / "model.safetensors", ["num_iter"])
    saccade.train(resume=run, quiet=True)
    assert torch.equal(opened_quietly(run)(torch.ones(1, 1, 32, 32)), before)


@pytest.mark.parametrize("plugin", ["second_order", "second_order:beside=true", "second_order:"])
def test_second_order_heads_of_the_first_version_open_average_and_give_their_weights(plugin, tmp_path):
    spec = InputSpec(("a", "b", "c"), 3, 32, [0.5] * 3, [0.5] * 3)
    more = "," if plugin.rpartition(":")[2] and ":" in plugin else ":"
    wide = {"embed_dim": 320, "num_heads": 2, "depth": 1}  # whose head was sized otherwise than it is now
    config = ModelConfig(name="test_vit", plugins=[f"{plugin.rstrip(':')}{more}head_dim=width"], options=wide)
    model = build_model(config, spec, seed=0).eval()
    file = tmp_path / "model.safetensors"
    save_model(file, model.state_dict(), config, spec)
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["saccade"])
    about["model"]["plugins"] = [plugin]
    for name in ("version", "task"):
        del about[name]
    save_file(load_file(file), file, metadata={"saccade": json.dumps(about)})
    mean = average_weights([file, file], tmp_path / "mean.safetensors")
    config = ModelConfig(name="test_vit", plugins=config.plugins, options=wide, checkpoint=str(file))
    again = build_model(config, InputSpec(("a", "b", "c"), 3, 32, [0.5] * 3, [0.5] * 3), seed=1).eval()
    with torch.no_grad():
        want = model(images())
        assert torch.equal(again(images()), want)
        for path in (file, mean):
            assert torch.equal(load_model(path)[0](images()), want)
