"""Helpers that several files of the tests of optimize use."""

import copy

import timm
import torch
from timm.layers import LayerScale
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from saccade.deployment.optimize import optimize

IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(5))


class Fn(nn.Module):
    """Layers by name and a function of them and the input."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def stir(model):
    """Give norms and scales statistics and factors that a mistake in folding cannot survive."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.3, 3, generator=generator)
                module.weight.uniform_(0.3, 2, generator=generator)
                module.bias.normal_(generator=generator)
            elif isinstance(module, LayerScale):
                module.gamma.normal_(generator=generator)
    return model


def left(model):
    return [name for name, module in model.named_modules() if isinstance(module, _BatchNorm | LayerScale)]


def outputs(model, *args):
    with torch.no_grad():
        return model.eval()(*args)


def optimized(model, example=IMAGES):
    """Optimize and check, on another input than the example, that the function is the same."""
    fast = optimize(stir(model), example)
    other = torch.randn(example.shape, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(outputs(fast, other), outputs(copy.deepcopy(model), other), rtol=1e-4, atol=1e-4)
    return fast


def conv(**options):
    return nn.Conv2d(3, 3, 3, padding=1, **options)


def vit(**options):
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 10}
    return stir(timm.create_model("vit_tiny_patch16_224", init_values=0.1, **size, **options))
