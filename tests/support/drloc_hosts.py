"""Helpers that several files of the tests of drloc use."""

import pytest
import timm
import torch

SIZE = (64, 96)
TARGETS = torch.tensor([1, 3])
HOSTS = {
    "vit_tiny_patch16_224": {"depth": 2, "img_size": SIZE},
    "deit_tiny_distilled_patch16_224": {"depth": 2, "img_size": SIZE},
    "eva02_tiny_patch14_224": {"depth": 2, "patch_size": 16, "img_size": SIZE},
    "cait_xxs24_224": {"depth": 2, "img_size": SIZE},
    "mixer_s32_224": {"embed_dim": 48, "img_size": 64},
    "pit_ti_224": {"depth": (1, 1, 1), "img_size": SIZE},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 2, 1), "embed_dim": 24, "img_size": SIZE},
    "convnext_atto": {"depths": (1, 1, 1, 1)},
    "resnet50": {"layers": (1, 1, 1, 1)},
    "nommer_tiny": {"depths": (1, 1, 1, 1), "img_size": SIZE},
    "glnet_stl": {"depths": (1, 1, 2, 1)},
    "sot_tiny": {"depth": 2, "img_size": SIZE},
    "cvt_13": {"depths": (1, 1, 1)},
    "t2t_vit_7": {"depth": 2, "img_size": SIZE},
}
every_host = pytest.mark.parametrize("name", HOSTS)


def host(name="vit_tiny_patch16_224", **kwargs):
    kwargs = {**HOSTS[name], **kwargs}
    if name == "mixer_s32_224":
        width = kwargs.pop("embed_dim")
        return timm.models.mlp_mixer.MlpMixer(5, patch_size=32, num_blocks=2, embed_dim=width, **kwargs)
    if name == "resnet50":
        return timm.models.resnet.ResNet(timm.models.resnet.Bottleneck, num_classes=5, **kwargs)
    return timm.create_model(name, num_classes=5, **kwargs)


def images(model=None, size=SIZE):
    if model is not None and type(model).__name__ == "MlpMixer":
        size = (64, 64)
    return torch.randn(2, 3, *size)


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def listen(task):
    """Keep what the task's locators are given (tokens, pairs) and return."""
    heard = []
    for locator in task.locators:
        locator.register_forward_hook(lambda _, args, output: heard.append((*args, output)))
    return heard


def same_grid(tokens, wanted):
    """Compare a sequence that may begin with a class token with a map, B, C, H, W."""
    wanted = wanted.flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens[:, tokens.shape[1] - wanted.shape[1] :], wanted)
