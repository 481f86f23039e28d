"""Convolution of each channel by itself on maps B, H, W, C."""

from torch import Tensor, nn


class DepthwiseConv(nn.Conv2d):
    """Convolution of each channel by itself that keeps the size of a map B, H, W, C."""

    bias: nn.Parameter | None  # none where `optimize` has the layer behind add it

    def __init__(self, dim: int, kernel_size: int) -> None:
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={kernel_size} was given; it must be odd to keep the map's size")
        super().__init__(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
