"""NomMer's replacement modules."""

from typing import Any

import torch
from torch import Tensor

from ...layers.nominate import Synergy
from ..fused import Fused


class HalfPrecisionSynergy(Fused, Synergy):
    """A map converted once to autocast's precision, which the products of all three candidates read."""

    plain = Synergy

    def takes(self, x: Tensor, *_: Any) -> bool:
        """Whether autocast would convert the map for every product, on a GPU."""
        return x.is_cuda and torch.is_autocast_enabled("cuda")

    def fused(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix tokens, B, prefix + H * W, C."""
        return Synergy.forward(self, x.to(torch.get_autocast_dtype("cuda")), grid)
