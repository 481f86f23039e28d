"""A convolution at full resolution before max pooling, on a GPU: the bias and the pooling's gradient."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.token_embed import Stem
from ..compiling import HALVES, compiles_for_gpu, trains_on_gpu
from ..fused import Fused
from ..ops.max_pool import MaxPool
from ..precision import as_products_read


class FusedStem(Fused, Stem):
    """The bias added behind the poolings: a constant added to a channel does not change its maxima.

    A compiler on a GPU adds the bias in a pass of its own over the largest map of the network, and sums its gradient in
    another.
    """

    plain = Stem

    @classmethod
    def refuses(cls, module: Stem) -> str | None:
        """Why this stem cannot be replaced, or None."""
        if not isinstance(module[0], nn.Conv2d) or module[0].bias is None:
            return "it does not start with a convolution with bias"
        return (
            None
            if all(isinstance(pool, nn.MaxPool2d) for pool in module[1:])
            else "it has layers other than max pooling after its convolution"
        )

    def takes(self, x: Tensor) -> bool:
        """Whether the images are on a GPU; a tracer's stand-in cannot say."""
        return type(x) is Tensor and x.is_cuda

    def fused(self, x: Tensor) -> Tensor:
        """Return maps of half the side, or less."""
        conv, *pools = self
        conv = cast(nn.Conv2d, conv)
        x, weight = aligned(x, conv.weight) if conv.groups == 1 else (x, conv.weight)
        x = F.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        for pool in pools:
            x = MaxPool.apply(x) if trains_on_gpu(x) and halves(pool) else pool(x)
        return x + cast(Tensor, conv.bias).to(x.dtype).view(-1, 1, 1)


def aligned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return images and kernels with channels of zeros up to eight, in inference by half precision compiled for a GPU.

    Its library would add them itself, in a pass of its own over the images.
    """
    if torch.is_grad_enabled() or not compiles_for_gpu(x):
        return x, weight
    x = as_products_read(x)
    more = -x.shape[1] % 8 if x.dtype in HALVES else 0
    return F.pad(x, (0, 0, 0, 0, 0, more)), F.pad(weight, (0, 0, 0, 0, 0, more))


def halves(pool: nn.Module) -> bool:
    """Whether a module is the max pooling that `MaxPool` is."""
    if type(pool) is not nn.MaxPool2d or pool.ceil_mode or pool.return_indices:
        return False
    return (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (3, 2, 1, 1)
