"""What is built on timm takes our backbones as it takes timm's own."""

import pytest
import segmentation_models_pytorch as smp
import torch
from transformers import TimmBackbone, TimmBackboneConfig

import saccade  # noqa: F401 (registers the backbones)

STRIDES = {"glnet_stl": (4, 8, 16, 32), "nommer_tiny": (4, 8, 16, 32), "cvt_13": (4, 8, 16)}


@pytest.mark.parametrize("name", STRIDES)
def test_hugging_face_takes_it_as_a_backbone(name):
    strides = STRIDES[name]
    model = TimmBackbone(TimmBackboneConfig(backbone=name, out_indices=tuple(range(len(strides))))).eval()
    with torch.inference_mode():
        maps = model(torch.randn(1, 3, 96, 128)).feature_maps
    assert [tuple(x.shape[1:]) for x in maps] == [
        (channels, 96 // stride, 128 // stride) for channels, stride in zip(model.channels, strides, strict=True)
    ]


@pytest.mark.parametrize("name", ["glnet_stl", "nommer_tiny"])
def test_segmentation_models_take_it_as_an_encoder(name):
    model = smp.Unet(f"tu-{name}", encoder_weights=None, classes=2).eval()
    with torch.inference_mode():
        assert model(torch.randn(1, 3, 96, 128)).shape == (1, 2, 96, 128)
