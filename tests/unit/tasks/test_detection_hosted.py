"""Detectors of Hugging Face: what they are told and how they are read, and that their folders choose no code."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from saccade.config import ConfigError, ModelConfig
from saccade.data.spec import InputSpec
from saccade.tasks.detection import hosted
from saccade.tasks.detection.objects import Objects
from support.hosted import save_detector

pytest.importorskip("transformers")


class Answering(nn.Module):
    """Says the same of every image, and keeps what it is told."""

    def __init__(self, logits: list[list[float]], boxes: list[list[float]]) -> None:
        super().__init__()
        self.logits, self.boxes, self.told = torch.tensor([logits]), torch.tensor([boxes]), {}

    def forward(self, pixel_values: torch.Tensor, labels: Any = None) -> Any:
        self.told = labels
        return SimpleNamespace(logits=self.logits, pred_boxes=self.boxes, loss=pixel_values.sum())


def make_spec() -> InputSpec:
    return InputSpec(("a", "b"), 3, 64, [0.5] * 3, [0.5] * 3, task="detect")


def test_answers_are_boxes_in_pixels_the_surest_first() -> None:
    model = hosted.HostedDetector(Answering([[0.0, 2.0], [1.0, -9.0]], [[0.5, 0.5, 0.5, 0.25], [0.1, 0.5, 0.4, 1]]), 2)
    found = model(torch.zeros(1, 3, 40, 80))[0]
    assert found[0].tolist() == pytest.approx([20.0, 15.0, 60.0, 25.0, torch.tensor(2.0).sigmoid().item(), 1.0])
    assert found[1, :4].tolist() == pytest.approx([0.0, 0.0, 24.0, 40.0])  # cut at the image's edge
    assert found[:, 5].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_the_model_is_told_of_single_objects_alone_in_sides_of_the_image() -> None:
    host = Answering([[0.0]], [[0.0, 0.0, 1.0, 1.0]])
    boxes = torch.tensor([[[20.0, 10.0, 60.0, 30.0], [0.0, 0.0, 5.0, 5.0], [0.0, 0.0, 0.0, 0.0]]])
    truth = Objects(boxes, torch.tensor([[1, 0, -1]]), torch.tensor([[False, True, False]]))
    hosted.HostedDetector(host, 2).losses(torch.zeros(1, 3, 40, 80), truth, torch.tensor([0]))
    assert host.told[0]["class_labels"].tolist() == [1]
    assert host.told[0]["boxes"].tolist() == [[0.5, 0.5, 0.5, 0.5]]


def test_a_folder_chooses_no_code_and_no_files(tmp_path) -> None:
    folder, marker = save_detector(tmp_path / "host", "rt_detr"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "own.Own", "AutoModelForObjectDetection": "own.Own"}, "_name_or_path": "/x"}
    (folder / "config.json").write_text(json.dumps(config))
    spec = make_spec()
    hosted.describe(spec, ModelConfig(name=f"hf:{folder}"))
    assert not {"auto_map", "_name_or_path"} & spec.extra["host"]["config"].keys()
    hosted.build(ModelConfig(name=f"hf:{folder}"), spec)
    assert not marker.exists()


def test_weights_in_a_pickle_are_refused(tmp_path) -> None:
    folder, spec = save_detector(tmp_path / "host", "rt_detr"), make_spec()
    (folder / "pytorch_model.bin").write_bytes(b"")
    hosted.describe(spec, ModelConfig(name=f"hf:{folder}"))
    with pytest.raises(ConfigError, match="are a pickle"):
        hosted.build(ModelConfig(name=f"hf:{folder}", pretrained=hosted.has_weights(f"hf:{folder}")), spec)


def test_a_model_of_another_kind_is_refused_with_those_that_can_be_read(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "yolos"}))
    with pytest.raises(ConfigError, match=r"kind 'yolos', .*d_fine.*rf_detr.*rt_detr"):
        hosted.describe(make_spec(), ModelConfig(name=f"hf:{tmp_path}"))


def test_a_strangers_spec_is_checked_before_anything_is_built() -> None:
    spec = make_spec()
    spec.extra["host"] = {"model_type": "os.system", "config": {}}
    with pytest.raises(ValueError, match=r"model type 'os\.system'"):
        hosted.check(spec)


def test_images_are_normalised_as_the_folder_says(tmp_path) -> None:
    file = tmp_path / "preprocessor_config.json"
    assert hosted.normalisation(str(tmp_path)) is None
    file.write_text(json.dumps({"do_normalize": False, "image_mean": [1, 1, 1]}))
    assert hosted.normalisation(str(tmp_path)) == ([0.0] * 3, [1.0] * 3)
    file.write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]}))
    assert hosted.normalisation(f"hf:{tmp_path}") == ([0.1, 0.2, 0.3], [0.5] * 3)
    file.write_text(json.dumps({"image_mean": "none", "image_std": [0.5, 0.5]}))
    assert hosted.normalisation(str(tmp_path)) is None
