"""Normalisations of covariance matrices that SoT compares with svPN (section 4.2 and table 4d)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..settings.values import require_choice
from .numerics import upcast

Axis = Literal["column", "vector"]


class SquareRoot(nn.Module):
    """Matrix square root by Newton and Schulz, scaled by the trace: matrix power normalisation (MPN) as iSQRT has it.

    Args:
        num_iter: iterations; three are enough for a representation, ten and more for a square root.
    """

    def __init__(self, num_iter: int = 3) -> None:
        super().__init__()
        if num_iter < 1:
            raise ValueError(f"num_iter={num_iter} was given; it must be at least 1")
        self.num_iter = num_iter

    def forward(self, p: Tensor) -> Tensor:
        """Take the root of positive semi-definite matrices ..., d, d; the result is at least float32."""
        p = upcast(p)
        trace = p.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(1e-12)
        a = p / trace
        half = 1.5 * torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
        z = half - 0.5 * a
        y = a @ z
        for _ in range(self.num_iter - 2):
            step = half - 0.5 * (z @ y)
            y, z = y @ step, step @ z
        if self.num_iter > 1:
            y = y @ (half - 0.5 * (z @ y))
        return y * trace.sqrt()

    def extra_repr(self) -> str:
        """Show the number of iterations."""
        return f"num_iter={self.num_iter}"


class Scale(nn.Module):
    """Multiply by one number, fixed or learned.

    Args:
        value: the number, or where learning starts.
        learned: make it a parameter.
        positive: learn its logarithm, which keeps it above zero.
    """

    def __init__(self, value: float, *, learned: bool, positive: bool = False) -> None:
        super().__init__()
        self.value = value
        if learned and positive:
            self.log_factor = nn.Parameter(torch.tensor(math.log(value)))
        elif learned:
            self.factor = nn.Parameter(torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the number."""
        if "log_factor" in self._parameters:
            return x * self.log_factor.to(x.dtype).exp()
        return x * (self.factor.to(x.dtype) if "factor" in self._parameters else self.value)


class RowNorm(nn.LayerNorm):
    """Layer norm of the rows of matrices, in their precision rather than in its parameters'."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise matrices ..., m, n along the last axis."""
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class ElementPower(nn.Module):
    """Element-wise power normalisation (EPN): signed square root, then unit length.

    Args:
        axis: unit length for each "column" of a matrix or for the whole "vector" of a sample.
    """

    def __init__(self, axis: Axis = "column") -> None:
        super().__init__()
        require_choice("epn_axis", axis, Axis)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Normalise matrices B, heads, m, n; the result is at least float32."""
        x = upcast(x)
        x = x.sign() * (x.abs() + 1e-8).sqrt()
        return F.normalize(x, dim=-2) if self.axis == "column" else F.normalize(x.flatten(1), dim=1).view_as(x)
