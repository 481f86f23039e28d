"""Layers of segmenters and detectors, for rates and freezing: those of the backbone, then one of all that is new."""

import pytest
import timm
import torch
from timm.models import group_parameters

from saccade.building.freezing import freeze_lower
from saccade.settings import OptimConfig
from saccade.tasks.detection import Detect
from saccade.tasks.detection.detector import Detector
from saccade.tasks.segmentation import Segment
from saccade.tasks.segmentation.heads import Segmenter
from saccade.training.optim import build_optimizer, set_rate

HOSTS = ["resnet18", "test_efficientnet", "test_vit", "swin_tiny_patch4_window7_224", "convnext_atto", "glnet_nano"]


def segmenter(name, head="fpn:width=32,inner=32,aux=32"):
    return Segmenter(timm.create_model(name, num_classes=0), head, num_classes=3)


def detector(name):
    return Detector(timm.create_model(name, num_classes=0), "atss:width=32", num_classes=3, masks=False)


@pytest.mark.parametrize("make", [segmenter, detector])
@pytest.mark.parametrize("name", HOSTS)
def test_layers_are_those_of_the_backbone_and_then_one_of_all_that_is_new(name, make):
    model = make(name)
    own = group_parameters(model.backbone, model.backbone.group_matcher(), reverse=True)
    found = group_parameters(model, model.group_matcher(), reverse=True)
    last = max(found.values())
    assert {part: layer for part, layer in found.items() if not part.startswith("backbone.")} == {
        part: last for part, _ in model.named_parameters() if not part.startswith("backbone.")
    }
    assert {part: found[f"backbone.{part}"] for part in own} == own
    assert max(own.values()) in (last, last - 1)  # what the backbone's matcher leaves out is in the last layer, too


@pytest.mark.parametrize(("make", "kind"), [(segmenter, Segment), (detector, Detect)])
def test_layer_decay_slows_the_lower_layers_of_the_backbone_alone(make, kind):
    task = kind(make("test_efficientnet"))
    optimizer = build_optimizer(task, OptimConfig(layer_decay=0.5), device=torch.device("cpu"))
    set_rate(optimizer, 1.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in task.model.named_parameters()}
    assert {rate for name, rate in found.items() if not name.startswith("backbone.")} == {1.0}
    names = ("conv_stem", "blocks.1.0.conv_exp", "blocks.3.0.conv_pw")
    stem, early, late = (found[f"backbone.{name}.weight"] for name in names)
    assert stem < early < late < 1.0


@pytest.mark.parametrize("make", [segmenter, detector])
def test_a_frozen_share_is_of_the_backbone_and_never_of_the_head(make):
    model = make("test_efficientnet")
    freeze_lower(model, 0.9)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert "backbone.conv_stem.weight" in frozen
    assert all(name.startswith("backbone.") for name in frozen)
