"""Convolution of each channel by itself, compiled for a GPU."""

import torch
from torch import Tensor

from ...layers.depthwise import DepthwiseConv
from ..compiling import compiles_for_gpu
from ..fused import Fused
from ..ops.depthwise import Turned, convolve_beside, serves
from ..precision import as_products_read


class FusedDepthwiseConv(Fused, DepthwiseConv):
    """Convolution by one kernel, in half precision, or with a fast gradient."""

    plain = DepthwiseConv

    def takes(self, x: Tensor) -> bool:
        """Whether a call is compiled for a GPU."""
        return compiles_for_gpu(x)

    def fused(self, x: Tensor) -> Tensor:
        """Return a map of the same shape, B, H, W, C."""
        x = as_products_read(x)
        if self.joins(x):
            grid = (x.shape[1], x.shape[2])
            return self.joined(x.flatten(1, 2), grid).unflatten(1, grid)
        if torch.is_grad_enabled():
            return Turned.apply(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        return DepthwiseConv.forward(self, x)

    def joins(self, x: Tensor) -> bool:
        """Whether `joined` takes a map."""
        return serves(x, self.kernel_size[0])

    def joined(
        self,
        x: Tensor,
        grid: tuple[int, int],
        *,
        residual: bool = False,
        gelu: bool = False,
        before: Tensor | None = None,
    ) -> Tensor:
        """Return the convolution of a map B, H * W, C by one kernel, with what is beside it; see `convolve_beside`."""
        return convolve_beside(x, self.weight, self.bias, grid, residual=residual, gelu=gelu, before=before)
