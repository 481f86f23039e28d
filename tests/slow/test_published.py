"""Every published network, by the file it came as: asked by each verb it gives the published logits."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import saccade
from saccade.building.loading import open_model
from saccade.deployment.predictor import open_predictor
from support.golden import case, relative_error
from support.published import write_published
from support.trainings import environment

pytestmark = pytest.mark.slow
NAMES = {  # by golden file and case: how the network is named
    ("glnet_stl", "224"): "glnet_stl",
    ("glnet_stl", "97x131"): "glnet_stl",
    ("glnet_stl_paramslot", "224"): "glnet_stl_paramslot",
    ("glnet_4g", "224"): "glnet_4g",
    ("glnet_4g_tklb", "224"): "glnet_4g_tl",
    ("nommer_tiny", "224"): "nommer_tiny",
    ("nommer_tiny", "192_win6"): "nommer_tiny:img_size=192,window_size=6",
    ("nommer_base", "224"): "nommer_base",
    ("sot_7", "112"): "sot_7",
    ("sot_tiny", "224"): "sot_tiny",
    ("sot_tiny_densebn", "224"): "sot_tiny:dense_norm=true",
    ("sot_base", "112"): "sot_base:img_size=112",
    ("cvt_13", "224"): "cvt_13",
    ("t2t_vit_14", "224"): "t2t_vit_14",
    ("t2t_vit_14", "192"): "t2t_vit_14:img_size=192",
}


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (260, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize(("run", "name"), NAMES.items(), ids=str)
def test_every_published_network_is_opened_by_its_file(run, name, ending, tmp_path):
    golden = case(*run)
    loaded = open_model(f"{name}@{write_published(golden, tmp_path / f'x{ending}')}")
    with torch.no_grad():
        assert relative_error(loaded.model(golden.input()), golden.logits) < 1e-4


@pytest.mark.parametrize("name", ["sot_7", "glnet_stl", "cvt_13"])
def test_an_export_of_one_answers_as_the_network_does(name, photo, tmp_path):
    golden = case(name, "112" if name == "sot_7" else "224")
    target = f"{name}@{write_published(golden, tmp_path / 'theirs.pth')}"
    done = saccade.export(target, out=tmp_path / "export", limit=4)
    assert done.bundle.name == f"{name}-theirs"
    eager, exported = open_predictor(target), open_predictor(tmp_path / "export" / "model.onnx")
    pixels = np.asarray(Image.open(photo))
    framed = torch.stack([eager.framing(pixels)])
    assert np.allclose(eager.rows(framed), exported.rows(framed), atol=1e-5)
    with torch.no_grad():
        assert relative_error(eager.model(golden.input()), golden.logits) < 1e-4


def test_the_command_takes_one_wherever_it_takes_a_run(photo, tmp_path):
    target = f"sot_7@{write_published(case('sot_7', '112'), tmp_path / 'theirs.pth')}"
    want = next(iter(saccade.predict(target, photo))).answer.rows[0]

    def saccade_says(*words):
        command = [sys.executable, "-m", "saccade.cli", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)

    said = json.loads(saccade_says("predict", target, str(photo), "--form", "jsonl", "--quiet").stdout)
    assert said["answers"][0]["class"] == want[0]
    assert said["answers"][0]["probability"] == pytest.approx(want[2], rel=1e-3)
    saccade_says("explain", target, str(photo), "--views", "gradcam", "--out", "explained")
    for name in ("n01440764", "n01443537"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        shutil.copy(photo, folder / "photo.png")
    measured = json.loads(saccade_says("evaluate", target, "--data", "images", "--json", "--quiet").stdout)
    assert [one["name"] for one in measured["runs"]] == ["sot_7"]
    race = ("--model", target, "--peer", "sot_7", "--img-size", "112", "--batch-size", "1")
    assert f"| {target} |" in saccade_says("benchmark", *race).stdout
