"""What somebody meets who has just installed it, asked as they ask: by the command and the verbs of the package."""

import errno
import json
import os
import re
import socket

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import saccade
from saccade.cli import main
from saccade.runs import state
from saccade.training.loop import Loop
from support.trainings import png_folder

SHORT = ["--epochs", "1", "--batch-size", "6", "--img-size", "32", "--device", "cpu", "--set", "data.workers=0"]
RESNET = ["--model", "test_resnet", *SHORT]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("images"), train=12, val=3)


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Type a command in an empty folder; return its status and what it said, on one line."""
    monkeypatch.chdir(tmp_path)

    def type_(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stop:
            status = stop.code
        told = capsys.readouterr()
        return status, " ".join((told.out + told.err).split())

    return type_


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    """A run of a small ResNet."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", str(images), *RESNET, "--out", str(run), "--quiet"]) == 0
    return run


@pytest.fixture(scope="module")
def exported(trained):
    """The folder it was exported to, with 8 bits as well."""
    return saccade.export(trained, int8=True, limit=3).folder


def test_weights_of_a_deeper_network_are_refused_and_their_model_named(images, typed, tmp_path):
    save_file(timm.create_model("resnet34").state_dict(), tmp_path / "trained.safetensors")
    start = ["--set", f"model.checkpoint={tmp_path / 'trained.safetensors'}", "--model", "resnet18"]
    status, told = typed("train", images, *start, *SHORT, "--out", "run")
    assert status == 2
    assert "does not fit resnet18" in told
    assert "it fits resnet34" in told
    assert not (tmp_path / "run").exists()


def test_trained_patches_stay_as_large_as_they_were_on_small_images(images, tmp_path, capsys):
    trained = timm.create_model("vit_tiny_patch16_224", depth=1)
    save_file(trained.state_dict(), tmp_path / "trained.safetensors")
    values = {"model.checkpoint": str(tmp_path / "trained.safetensors"), "model.options": {"depth": 1}}
    values |= {"data.img_size": 64, "data.workers": 0, "engine.device": "cpu", "optim.batch_size": 6}
    run = saccade.train(str(images), model="vit_tiny", epochs=1, out=tmp_path / "run", settings=values)
    assert load_file(run.path / "model.safetensors")["patch_embed.proj.weight"].shape[-2:] == (16, 16)
    assert "resampled from trained.safetensors to the model's size: 'pos_embed'" in " ".join(
        capsys.readouterr().err.split()
    )


def test_drloc_acts_in_a_run_of_one_epoch(images, tmp_path):
    values = {"model.options": {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8}, "engine.device": "cpu"}
    values |= {"data.img_size": 32, "data.workers": 0, "optim.batch_size": 4}
    kept = [
        load_file(run.path / "model.safetensors")
        for run in (
            saccade.train(
                str(images),
                model="vit_tiny_patch16_224",
                plugins=plugins,
                epochs=1,
                out=tmp_path / str(len(plugins)),
                settings=values,
                quiet=True,
            )
            for plugins in ([], ["drloc"])
        )
    ]
    assert any(not torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


@pytest.mark.slow
def test_an_arm_that_trained_exactly_like_the_reference_is_called_never_applied(images, typed, tmp_path):
    arms = ["--arm", "base", "--arm", "same:=keep.evaluate_every=5"]
    status, told = typed("compare", images, *arms, "--seeds", "2", *RESNET, "--out", "found")
    assert status == 0, told
    assert json.loads((tmp_path / "found" / "result.json").read_text())["verdicts"]["same"]["kind"] == "never applied"
    assert "same: never applied" in told


def test_an_image_of_the_asked_size_is_seen_to_its_border(images, typed, tmp_path):
    small = ["--model", "mobilenetv3_small_050", *SHORT, "--img-size", "64"]  # timm shows it 87.5% of a side
    assert typed("train", images, *small, "--out", "run")[0] == 0
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    (tmp_path / "asked").mkdir()
    for name, border in (("black", 0), ("white", 255)):
        image[0] = image[-1] = image[:, 0] = image[:, -1] = border
        Image.fromarray(image).save(tmp_path / "asked" / f"{name}.png")
    black, white = (dict(one.answers) for one in saccade.predict(tmp_path / "run", tmp_path / "asked"))
    assert black != white


@pytest.mark.slow
def test_8_bits_make_a_convolutional_network_smaller(exported):
    plain, small = ((exported / name).stat().st_size for name in ("model.onnx", "model.int8.onnx"))
    assert small < 0.5 * plain


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), (37, 53), (90, 41)])
def test_an_exported_graph_takes_pixels_as_they_come_and_answers_as_predict_does(trained, exported, tmp_path, size):
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "image.png")
    (asked,) = saccade.predict(trained, tmp_path / "image.png")
    session = onnxruntime.InferenceSession(exported / "model.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["saccade"])
    (logits,) = session.run(["logits"], {"image": np.ascontiguousarray(image.transpose(2, 0, 1)[None])})
    probabilities = torch.from_numpy(logits).double().softmax(1)[0].tolist()
    want = [dict(asked.answers)[name] for name in about["classes"]]
    assert probabilities == pytest.approx(want, abs=1e-6)


def test_trained_weights_without_a_network_are_refused_soon_with_what_to_give(images, typed, tmp_path, monkeypatch):
    asked = []

    def refuse(address, *_, **__):
        asked.append(address)
        raise OSError("no route")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    flags = ["--model", "resnet10t", "--set", "model.pretrained=true", *SHORT]
    status, told = typed("train", images, *flags, "--out", "run")
    assert status == 2
    assert "--checkpoint FILE" in told
    assert len(asked) == 1  # without a row of retries


def test_a_disk_that_is_full_at_once_speaks_of_no_states_before(images, typed, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state, "save_file", full)
    status, told = typed("train", images, *RESNET, "--out", "run")
    assert status == 2
    assert "No space left" in told
    assert "intact" not in told


def test_one_epoch_is_not_many(images, typed):
    status, told = typed("train", images, *RESNET, "--out", "run")
    assert status == 0
    assert "1 epoch, 2 steps" in told


def test_a_file_that_a_list_names_in_full_is_told_in_full(images, typed, tmp_path):
    bad = tmp_path / "elsewhere" / "bad.png"
    bad.parent.mkdir()
    bad.write_bytes(b"no image")
    files = [(file, file.parts[-3], file.parts[-2]) for file in sorted(images.rglob("*.png"))]
    rows = [",".join(map(str, row)) for row in [("path", "split", "label"), *files, (bad, "train", "class0")]]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "list.csv").write_text("\n".join(rows))
    status, told = typed("data", "check", "lists/list.csv")
    assert status == 1
    assert str(bad) in told
    assert ".." not in told


@pytest.mark.parametrize(("moment", "written"), [("train.assemble", False), ("train.finish", True)])
def test_ctrl_c_names_a_run_to_resume_where_there_is_one(images, typed, tmp_path, monkeypatch, moment, written):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"saccade.training.{moment}", stop)
    status, told = typed("train", images, *RESNET)
    (run,) = [run.relative_to(tmp_path) for run in tmp_path.glob("runs/*")] or [None]
    assert status == 130
    assert (run is not None) == written
    assert told.endswith(
        f"saccade train --resume {run}" if written else "training had not started, nothing was written"
    )


@pytest.mark.parametrize("flags", [[], ["--time", "60s", "--model", "test_resnet", "--img-size", "32"]])
def test_how_long_it_will_take_is_said_before_it_begins(images, typed, monkeypatch, flags):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_checkpoint_or_stop", stop)  # after the first step
    status, told = typed("train", images, "--device", "cpu", "--workers", "0", *flags, "--out", "run")
    assert re.search(r"\d+ epochs.* about .* \(timed over \d step", told)
    assert status == 130
