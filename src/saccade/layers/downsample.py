"""Patch embeddings of a pyramid: maps of a quarter, then of half the side, from patches that overlap or tile."""

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn

from .dense_rows import product
from .exporting import compiles_for_gpu
from .numerics import as_products_read
from .reuse import unheard
from .switch import on

FEW = 8  # positions a channel from which on the weight's gradient is summed image by image


@register_notrace_module
class PatchConv(nn.Conv2d):
    """Convolution by patches that tile the map; what is left over at the far edges is not read.

    A map smaller than one patch is padded with zeros to one, lest it vanish. Compiled for a GPU it is a product: the
    patches are laid out by whatever kernel makes the map, and no library converts images of three channels.
    """

    def __init__(self, in_dim: int, dim: int, *, patch: int, bias: bool = True) -> None:
        super().__init__(in_dim, dim, patch, stride=patch, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return B, dim, H / patch, W / patch, at least one by one."""
        height, width = x.shape[2:]
        if isinstance(height, int) and isinstance(width, int):
            bottom, right = max(self.kernel_size[0] - height, 0), max(self.kernel_size[1] - width, 0)
            if bottom or right:
                x = F.pad(x, (0, right, 0, bottom))
        if self.takes_rows(x):
            return self.by_rows(x)
        return super().forward(x)

    def takes_rows(self, x: Tensor) -> bool:
        """Tell whether the convolution becomes a product of rows."""
        return on("patches") and compiles_for_gpu(x) and len(x) > 0

    def by_rows(self, x: Tensor) -> Tensor:
        """Return the same by one product, a row for each patch."""
        x = as_products_read(x)
        patch, (height, width) = self.kernel_size[0], x.shape[2:]
        tall, wide = height // patch, width // patch
        x = x[:, :, : tall * patch, : wide * patch].permute(0, 2, 3, 1)
        x = x.unflatten(2, (wide, patch)).unflatten(1, (tall, patch)).transpose(2, 3)  # B, H', W', patch, patch, C
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        if torch.is_grad_enabled() and tall * wide >= FEW * len(weight):
            made = product(x.reshape(-1, weight.shape[1]), weight, parts=len(x))
            made = made if self.bias is None else made + self.bias.to(made.dtype)
        else:
            made = F.linear(x.reshape(-1, weight.shape[1]), weight, self.bias)
        return made.view(len(x), tall, wide, -1).permute(0, 3, 1, 2)


class Normed(nn.Sequential):
    """Layers in turn; a batch norm that follows a convolution makes that one's bias useless in training.

    The norm takes off what the bias adds, so that its gradient is zero but for rounding. On a GPU, where adding it and
    summing up its gradient are passes over the map, it reaches the running mean alone.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer makes."""
        layers = list(self)
        while layers:
            layer = layers.pop(0)
            joined = layers and unbiased(layer, layers[0], x)
            x = norm_unbiased(layer, layers.pop(0), x) if joined else layer(x)
        return x


def unbiased(conv: nn.Module, norm: nn.Module, x: Tensor) -> bool:
    """Tell whether a convolution is to leave out its bias before a norm: both plain, in training on a GPU."""
    return (
        on("unbiased")
        and type(conv) is nn.Conv2d
        and type(norm) is nn.BatchNorm2d
        and norm.training
        and conv.bias is not None
        and norm.momentum not in (None, 1.0)
        and norm.running_mean is not None
        and isinstance(x, Tensor)  # a tracer's stand-in is not
        and x.is_cuda
        and unheard(conv, norm)
        and (torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active())
    )


def norm_unbiased(conv: Any, norm: Any, x: Tensor) -> Tensor:
    """Return what the norm makes of the convolution, and leave the norm in the state that it would be left in."""
    x = _Unread.apply(conv._conv_forward(x, conv.weight, None), conv.bias)
    # The norm takes 1 - momentum of its running mean, and keeps it for the way back: no other call may write to that.
    mean = torch.add(norm.running_mean, conv.bias.detach(), alpha=norm.momentum / (1 - norm.momentum))
    x = F.batch_norm(x, mean, norm.running_var, norm.weight, norm.bias, True, norm.momentum, norm.eps)
    norm.running_mean.copy_(mean)
    norm.num_batches_tracked.add_(1)
    return x


class _Unread(torch.autograd.Function):
    """A tensor as it is, and a parameter that it does not depend on: a gradient of zero, where none is an exception."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor) -> Tensor:
        ctx.save_for_backward(parameter)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        (parameter,) = ctx.saved_tensors
        return grad, torch.zeros_like(parameter) if ctx.needs_input_grad[1] else None


def overlapping_stem(in_chans: int, dim: int, *, patch: int = 4) -> Normed:
    """Build two 3x3 convolutions, each before a batch norm, of stride 2 as far as the patch asks for it."""
    if patch not in (1, 2, 4):
        raise ValueError(f"patch={patch} was given; overlapping patches of a stem have a stride of 1, 2 or 4")
    return Normed(
        OrderedDict(
            conv1=nn.Conv2d(in_chans, dim // 2, 3, stride=2 if patch == 4 else 1, padding=1),
            norm1=nn.BatchNorm2d(dim // 2),
            act=nn.GELU(),
            conv2=nn.Conv2d(dim // 2, dim, 3, stride=1 if patch == 1 else 2, padding=1),
            norm2=nn.BatchNorm2d(dim),
        )
    )


def overlapping_downsample(in_dim: int, dim: int) -> Normed:
    """Build a 3x3 convolution of stride 2, then a batch norm."""
    return Normed(
        OrderedDict(
            conv=nn.Conv2d(in_dim, dim, 3, stride=2, padding=1),
            norm=nn.BatchNorm2d(dim),
        )
    )


def patch_stem(in_chans: int, dim: int, *, patch: int = 4) -> nn.Sequential:
    """Build an embedding of square patches, then a batch norm."""
    return nn.Sequential(
        OrderedDict(
            conv=PatchConv(in_chans, dim, patch=patch),
            norm=nn.BatchNorm2d(dim),
        )
    )


def patch_downsample(in_dim: int, dim: int) -> nn.Sequential:
    """Build a batch norm, then an embedding of 2x2 patches."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(in_dim),
            conv=PatchConv(in_dim, dim, patch=2),
        )
    )
