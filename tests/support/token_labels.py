"""Helpers that several files of the tests of token label use."""

import timm
import torch

import saccade.models.glnet  # noqa: F401

SIZE = (64, 96)
TARGETS = torch.tensor([1, 3])
HOSTS = {
    "vit_tiny_patch16_224": {"depth": 1, "img_size": SIZE},
    "deit_tiny_distilled_patch16_224": {"depth": 1, "img_size": SIZE},
    "cait_xxs24_224": {"depth": 1, "img_size": SIZE},
    "pit_ti_224": {"depth": (1, 1, 1), "img_size": SIZE},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1), "embed_dim": 24, "img_size": SIZE},
    "convnext_atto": {"depths": (1, 1, 1, 1)},
    "resnet10t": {},
    "glnet_stl": {"dims": (32, 32, 64, 64), "depths": (1, 1, 1, 1)},
}
MIDDLE = torch.tensor([0.2, 0.5, 0.5])  # a box on most grids


def host(name="vit_tiny_patch16_224", **kwargs):
    return timm.create_model(name, num_classes=5, **{**HOSTS.get(name, {}), **kwargs})


def teacher():
    return timm.create_model("resnet10t", num_classes=5)


def images(count=2, size=SIZE):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(2))


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def soft(*shape, seed=0):
    return (2 * torch.randn(*shape, generator=seeded(seed))).softmax(1)
