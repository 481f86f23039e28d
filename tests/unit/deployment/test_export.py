import json
import os
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn

from saccade.building.build import load_model
from saccade.deployment import export as exporting
from saccade.deployment import judge as judging
from saccade.deployment.bundle import ExportError
from saccade.deployment.export import export
from saccade.deployment.graph import WithPreprocessing, trace, write_onnx
from saccade.deployment.predict import predict
from saccade.deployment.predictor import open_predictor
from saccade.deployment.quantizing import note_small_saving
from saccade.deployment.verify import Parity
from support.exports import BUNDLE, CLASSES, tiny_onnx, tiny_run
from support.images import class_folders, pixels


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    class_folders(root / "train", dict.fromkeys(CLASSES, 1))
    class_folders(root / "val", dict.fromkeys(CLASSES, 7), start=50)
    return root


@pytest.fixture(scope="module")
def exported(run, images):
    return export(run, formats=["onnx", "pt2"], half=True, int8=True, data=str(images))


def test_all_versions_are_written_into_the_runs_folder_with_a_card(run, exported):
    names = ["model.onnx", "model.pt2", "model.half.onnx", "model.int8.onnx"]
    assert [file.path.name for file in exported.files] == names
    assert sorted(os.listdir(run / "export")) == sorted([*names, "export.json"])
    card = json.loads((run / "export" / "export.json").read_text())
    assert card == json.loads(json.dumps(exported.to_dict()))
    assert [file["path"] for file in card["files"]] == names
    assert card["bundle"]["classes"] == list(CLASSES)


def test_float32_versions_answer_as_the_run_does(run, exported):
    eager = open_predictor(run)
    x = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8)
    for name in ("model.onnx", "model.pt2"):
        opened = open_predictor(run / "export" / name, trust=True)
        np.testing.assert_allclose(opened.outputs(x), eager.outputs(x), atol=1e-5)
        assert opened.spec.outputs == eager.spec.outputs
        assert opened.framing == eager.framing
        assert opened.about()["parameters"] == eager.about()["parameters"]


def test_smaller_versions_are_smaller_and_near(run, exported):
    sizes = {file.precision: file.mib for file in exported.files if file.format == "onnx"}
    assert sizes["float16"] < 0.75 * sizes["float32"]
    assert sizes["int8"] < 0.75 * sizes["float32"]
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    want = open_predictor(run).outputs(x)
    for name in ("half", "int8"):
        got = open_predictor(run / "export" / f"model.{name}.onnx").outputs(x)
        assert 0 < np.abs(got - want).max() < 0.2


@pytest.mark.slow
def test_convolutions_are_quantized_too(images, tmp_path):
    run = tiny_run(tmp_path / "run", name="test_resnet", img_size=32)
    done = export(run, int8=True, data=str(images))
    plain, small = done.files
    assert small.mib < 0.4 * plain.mib
    assert 0 < small.parity.difference < 0.1 * max(1, small.parity.scale)
    assert done.notes == ()


def test_an_8_bit_file_that_saves_nothing_is_said_to_be_of_no_help():
    assert "save little: 42.7 of 42.8 MiB" in note_small_saving(42.7, 42.8)
    assert note_small_saving(10.8, 42.8) is None


def test_the_graph_frames_images_of_any_size_as_predict_does(run, exported, tmp_path):
    asked = {name: open_graph(run / "export" / name) for name in ("model.onnx", "model.half.onnx", "model.pt2")}
    for number, (height, width) in enumerate([(32, 32), (20, 31), (33, 90), (213, 117), (1, 5)]):
        image = pixels(number, height, width)
        Image.fromarray(image).save(tmp_path / "image.png")
        (answer,) = predict(run, tmp_path / "image.png")
        want = [dict(answer.answers)[name] for name in CLASSES]
        for name, ask in asked.items():
            logits = ask(np.ascontiguousarray(image.transpose(2, 0, 1)[None]))
            share = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            np.testing.assert_allclose(share[0], want, atol=3e-4 if "half" in name else 1e-6, err_msg=name)


def open_graph(path):
    """Return what asks an exported file about raw images, by its own program alone."""
    import onnxruntime

    if path.suffix == ".pt2":
        program = torch.export.load(path).module()
        return lambda image: program(torch.from_numpy(image)).detach().numpy()
    session = onnxruntime.InferenceSession(path)
    return lambda image: session.run(None, {"image": image})[0]


def test_what_says_that_it_frames_and_does_not_is_refused(tmp_path):
    tiny_onnx(tmp_path / "model.onnx", bundle=replace(BUNDLE, raw=True))
    with pytest.raises(ExportError, match="does not preprocess images as described"):
        open_predictor(tmp_path / "model.onnx")


def test_accuracy_is_that_of_the_named_images(run, images, exported):
    answers = list(predict(run, images / "val"))  # the folders are the classes, in another order than the logits
    right = [p.answers[0][0] in p.name for p in answers]
    assert exported.samples == len(right) == 21
    assert exported.score == pytest.approx(np.mean(right))
    plain = exported.files[0]
    assert (plain.score, plain.loss.value) == (exported.score, 0)
    assert plain.loss.low < 0 < plain.loss.high


def test_predict_takes_an_exported_file(run, images, exported):
    eager = list(predict(run, images / "val"))
    for got, want in zip(predict(run / "export" / "model.onnx", images / "val"), eager, strict=True):
        assert got.name == want.name
        assert got.answers[0][1] == pytest.approx(want.answers[0][1], abs=1e-5)


@pytest.fixture
def untraced(monkeypatch):
    """Exports write what a test lets them; tracing is that of `exported`."""
    monkeypatch.setattr(exporting, "trace", lambda _: None)


@pytest.mark.usefixtures("untraced")
def test_a_file_that_differs_is_not_kept(run, images, exported, tmp_path, monkeypatch):
    wrong = Parity(difference=0.1, scale=1.0, same=1.0, sizes=((32, 32),))
    monkeypatch.setattr(exporting, "write_onnx", lambda _program, path, _: shutil.copy(exported.files[0].path, path))
    monkeypatch.setattr(judging, "compare", lambda *_: wrong)
    with pytest.raises(ExportError, match=r"differs from the original by up to 0\.1 "):
        export(run, out=tmp_path / "out", data=str(images))
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("folder", ["out", "some/where/else"])
def test_an_export_that_is_stopped_leaves_no_folder(run, images, tmp_path, monkeypatch, folder):
    def stop(_program, path, _bundle):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "write_onnx", stop)
    with pytest.raises(KeyboardInterrupt):
        export(run, out=tmp_path / folder, data=str(images))
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("untraced")
def test_an_older_file_stays_when_the_new_one_is_bad(run, images, tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_text("older")
    monkeypatch.setattr(exporting, "write_onnx", lambda *_: (_ for _ in ()).throw(ExportError("cannot")))
    with pytest.raises(ExportError, match="cannot"):
        export(run, out=tmp_path, data=str(images))
    assert (tmp_path / "model.onnx").read_text() == "older"
    assert os.listdir(tmp_path) == ["model.onnx"]


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x.mean((2, 3)) if x.sum().item() > 3 else x.amax((2, 3))


def test_a_model_that_cannot_be_traced_says_why():
    with pytest.raises(ExportError, match=r"torch\.export cannot trace Stubborn: "):
        trace(WithPreprocessing(Stubborn(), BUNDLE.spec).eval())


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        small = 1e-20 * x.square().sum((2, 3)) + self.weight
        return small / (small + 1e-8)


def test_a_small_number_that_guards_a_denominator_is_kept(tmp_path):
    asked = WithPreprocessing(Guarded(), replace(BUNDLE, mean=(0.5,) * 3, std=(0.5,) * 3).spec).eval()
    program = trace(asked)
    write_onnx(program, tmp_path / "model.onnx", replace(BUNDLE, img_size=8))
    x = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    got = open_predictor(tmp_path / "model.onnx").outputs(x)
    assert np.abs(got).max() < 1e-6  # without the guard it is 1
    np.testing.assert_allclose(got, asked.outputs(x), atol=1e-7)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"formats": ["tflite"]}, "onnx, pt2"),
        ({"formats": "onnx"}, "expected a list"),
        ({"formats": []}, "onnx, pt2"),
        ({"formats": ["pt2"], "int8": True}, "need the format onnx"),
        ({"formats": ["pt2"], "half": True}, "need the format onnx"),
        ({"limit": 0}, "at least one image"),
    ],
)
def test_settings_that_make_no_sense_are_refused_first(given, told):
    with pytest.raises(ExportError, match=told):
        export("nowhere", **given)


def test_a_file_in_the_place_of_the_folder_is_refused(run, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(ExportError, match="is a file"):
        export(run, out=tmp_path / "out")


def test_an_onnx_file_is_whole_in_itself_and_well_formed(run, exported):
    model = onnx.load(str(run / "export" / "model.onnx"), load_external_data=False)
    onnx.checker.check_model(model)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [d.dim_param != "" for d in model.graph.input[0].type.tensor_type.shape.dim] == [True, False, True, True]


def test_exporting_leaves_the_run_as_it_was(run, exported):
    model, _ = load_model(run)
    assert all(p.dtype is torch.float32 for p in model.parameters())
