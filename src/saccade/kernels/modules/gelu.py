"""GELU by a shorter formula, compiled for a GPU in half precision."""

from typing import Any

import torch
from torch import Tensor, nn

from ..compiling import HALVES, compiles_for_gpu
from ..fused import Fused
from ..ops.gelu import Quick, gelu
from ..triton.language import INSTALLED


class FusedGelu(Fused, nn.GELU):
    """GELU right to 3e-7."""

    plain = nn.GELU

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        """Why this module cannot be replaced."""
        return None if module.approximate == "none" else "it uses a different approximation of GELU"

    def takes(self, x: Tensor) -> bool:
        """Whether a call is compiled for a GPU in half precision."""
        return compiles_for_gpu(x) and x.dtype in HALVES

    def fused(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape; in training by operators, which a compiler may choose to recompute."""
        return gelu(x) if INSTALLED and not torch.is_grad_enabled() else Quick.apply(x)
