"""Convolutions by patches that tile a map, as one product: whatever kernel makes the map lays the patches out."""

import torch.nn.functional as F
from torch import Tensor

from ...layers.downsample import PatchConv
from ..compiling import compiles_for_gpu
from ..fused import Fused
from ..precision import as_products_read


class FusedPatchConv(Fused, PatchConv):
    """A product of rows, one for each patch."""

    plain = PatchConv

    def takes(self, x: Tensor) -> bool:
        """Whether a call is compiled for a GPU, of a map that is at least one patch large."""
        return compiles_for_gpu(x) and len(x) > 0 and min(x.shape[2:]) >= self.kernel_size[0]

    def fused(self, x: Tensor) -> Tensor:
        """Return B, dim, H / patch, W / patch."""
        x, patch = as_products_read(x), self.kernel_size[0]
        tall, wide = x.shape[2] // patch, x.shape[3] // patch
        x = x[:, :, : tall * patch, : wide * patch].permute(0, 2, 3, 1)
        x = x.unflatten(2, (wide, patch)).unflatten(1, (tall, patch)).transpose(2, 3)  # B, H', W', patch, patch, C
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        made = F.linear(x.reshape(-1, weight.shape[1]), weight, self.bias)
        return made.view(len(x), tall, wide, -1).permute(0, 3, 1, 2)
