"""Models of Hugging Face: what they are told and how they are read, and that their folders choose no code."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from saccade.data.spec import InputSpec
from saccade.settings import ConfigError, ModelConfig
from saccade.tasks import Detect, Segment
from saccade.tasks.detection.hosted import HostedDetector
from saccade.tasks.detection.objects import Objects
from saccade.tasks.hosting import has_weights, normalisation
from saccade.tasks.segmentation.hosted import HostedSegmenter
from support.hosted import save_detector, save_segmenter

pytest.importorskip("transformers")


class Answering(nn.Module):
    """Says the same of every image, and keeps what it is told."""

    def __init__(self, logits: list[list[float]], boxes: list[list[float]]) -> None:
        super().__init__()
        self.logits, self.boxes, self.told = torch.tensor([logits]), torch.tensor([boxes]), {}

    def forward(self, pixel_values: torch.Tensor, labels: Any = None) -> Any:
        self.told = labels
        return SimpleNamespace(logits=self.logits, pred_boxes=self.boxes, loss=pixel_values.sum())


def make_spec(task: str = "detect") -> InputSpec:
    return InputSpec(("a", "b"), 3, 64, [0.5] * 3, [0.5] * 3, task=task)


def test_answers_are_boxes_in_pixels_the_surest_first() -> None:
    model = HostedDetector(Answering([[0.0, 2.0], [1.0, -9.0]], [[0.5, 0.5, 0.5, 0.25], [0.1, 0.5, 0.4, 1]]), 2)
    found = model(torch.zeros(1, 3, 40, 80))[0]
    assert found[0].tolist() == pytest.approx([20.0, 15.0, 60.0, 25.0, torch.tensor(2.0).sigmoid().item(), 1.0])
    assert found[1, :4].tolist() == pytest.approx([0.0, 0.0, 24.0, 40.0])  # cut at the image's edge
    assert found[:, 5].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_the_model_is_told_of_single_objects_alone_in_sides_of_the_image() -> None:
    host = Answering([[0.0]], [[0.0, 0.0, 1.0, 1.0]])
    boxes = torch.tensor([[[20.0, 10.0, 60.0, 30.0], [0.0, 0.0, 5.0, 5.0], [0.0, 0.0, 0.0, 0.0]]])
    truth = Objects(boxes, torch.tensor([[1, 0, -1]]), torch.tensor([[False, True, False]]))
    HostedDetector(host, 2).losses(torch.zeros(1, 3, 40, 80), truth, torch.tensor([0]))
    assert host.told[0]["class_labels"].tolist() == [1]
    assert host.told[0]["boxes"].tolist() == [[0.5, 0.5, 0.5, 0.5]]


def test_a_folder_chooses_no_code_and_no_files(tmp_path) -> None:
    folder, marker = save_detector(tmp_path / "host", "rt_detr"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "own.Own", "AutoModelForObjectDetection": "own.Own"}, "_name_or_path": "/x"}
    (folder / "config.json").write_text(json.dumps(config))
    spec = make_spec()
    Detect.hosts.complete_spec(spec, ModelConfig(name=f"hf:{folder}"))
    assert not {"auto_map", "_name_or_path"} & spec.extra["host"]["config"].keys()
    Detect.hosts.create_model(ModelConfig(name=f"hf:{folder}"), spec)
    assert not marker.exists()


def test_weights_in_a_pickle_are_refused(tmp_path) -> None:
    folder, spec = save_detector(tmp_path / "host", "rt_detr"), make_spec()
    (folder / "pytorch_model.bin").write_bytes(b"")
    Detect.hosts.complete_spec(spec, ModelConfig(name=f"hf:{folder}"))
    with pytest.raises(ConfigError, match="are a pickle"):
        Detect.hosts.create_model(ModelConfig(name=f"hf:{folder}", pretrained=has_weights(f"hf:{folder}")), spec)


def test_a_model_of_another_kind_is_refused_with_those_that_can_be_read(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "yolos"}))
    with pytest.raises(ConfigError, match=r"model type 'yolos', .*d_fine.*rf_detr.*rt_detr"):
        Detect.hosts.complete_spec(make_spec(), ModelConfig(name=f"hf:{tmp_path}"))


def test_a_strangers_spec_is_checked_before_anything_is_built() -> None:
    spec = make_spec()
    spec.extra["host"] = {"model_type": "os.system", "config": {}}
    with pytest.raises(ValueError, match=r"model type 'os\.system'"):
        Detect.check_spec(spec)


def test_images_are_normalised_as_the_folder_says(tmp_path) -> None:
    file = tmp_path / "preprocessor_config.json"
    assert normalisation(str(tmp_path)) is None
    file.write_text(json.dumps({"do_normalize": False, "image_mean": [1, 1, 1]}))
    assert normalisation(str(tmp_path)) == ([0.0] * 3, [1.0] * 3)
    file.write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]}))
    assert normalisation(f"hf:{tmp_path}") == ([0.1, 0.2, 0.3], [0.5] * 3)
    file.write_text(json.dumps({"image_mean": "none", "image_std": [0.5, 0.5]}))
    assert normalisation(str(tmp_path)) is None


@pytest.mark.parametrize("kind", ["rt_detr", "d_fine", "rf_detr", "lw_detr", "deformable_detr"])
def test_every_kind_of_detector_learns_and_answers(tmp_path, kind) -> None:
    spec, config = make_spec(), ModelConfig(name=f"hf:{save_detector(tmp_path, kind)}")
    Detect.hosts.complete_spec(spec, config)
    model: Any = Detect.hosts.create_model(config, spec)
    truth = Objects(
        torch.tensor([[[4.0, 4.0, 30.0, 30.0]], [[0.0, 0.0, 0.0, 0.0]]]),
        torch.tensor([[1], [-1]]),  # nothing is in the second image
        torch.zeros(2, 1, dtype=torch.bool),
    )
    loss = model.train().losses(torch.randn(2, 3, 64, 64), truth, torch.arange(2))["host"]
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    answers = model.eval()(torch.randn(2, 3, 64, 64))
    assert answers.shape[::2] == (2, 6)
    assert answers.isfinite().all()
    assert answers[..., :4].ge(0).all()
    assert answers[..., :4].le(64).all()


class Querying(nn.Module):
    """Has two queries: one sure of the first class in the left half, one of nothing everywhere."""

    def forward(self, pixel_values: torch.Tensor, mask_labels: Any = None, class_labels: Any = None) -> Any:
        self.told = (mask_labels, class_labels)
        masks = torch.full((1, 2, 4, 4), -9.0)
        masks[0, 0, :, :2], masks[0, 1] = 9.0, 9.0
        kinds = torch.tensor([[[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
        return SimpleNamespace(class_queries_logits=kinds, masks_queries_logits=masks, loss=pixel_values.sum()[None])


def test_a_pixel_is_of_the_class_whose_queries_have_it() -> None:
    found = HostedSegmenter(Querying(), 2)(torch.zeros(1, 3, 8, 8))
    assert found.shape == (1, 2, 8, 8)
    assert found[0, 0, :, :3].exp().min() > 0.99
    assert found.exp()[0, :, :, 6:].max() < 0.01  # nothing there


def test_a_segmenter_is_told_of_the_classes_in_an_image_and_not_of_what_counts_nowhere() -> None:
    host = Querying()
    mask = torch.tensor([[[1, 1], [-1, 0]]])
    loss, _ = HostedSegmenter(host, 2).losses(torch.ones(1, 3, 2, 2), mask)
    masks, kinds = host.told
    assert loss.item() == 12
    assert kinds[0].tolist() == [0, 1]
    assert masks[0].tolist() == [[[0, 0], [0, 1]], [[1, 1], [0, 0]]]


@pytest.mark.parametrize("kind", ["mask2former", "maskformer"])
def test_every_kind_of_segmenter_learns_and_answers(tmp_path, kind) -> None:
    spec, config = make_spec("segment"), ModelConfig(name=f"hf:{save_segmenter(tmp_path, kind)}")
    Segment.hosts.complete_spec(spec, config)
    model: Any = Segment.hosts.create_model(config, spec)
    mask = torch.zeros(2, 64, 64, dtype=torch.int64)
    mask[0, :32], mask[1] = 1, -1  # nothing of the second image counts
    loss, logits = model.train().losses(torch.randn(2, 3, 64, 64), mask)
    loss.backward()
    assert loss.isfinite()
    assert logits.isfinite().all()
    assert model.eval()(torch.randn(1, 3, 96, 64)).shape == (1, 2, 96, 64)
