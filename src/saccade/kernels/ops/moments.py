"""Mean and variance of a matrix's columns, whose gradient keeps the matrix and nothing else."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...layers.numerics import upcast


def moments_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance."""
    variance, mean = torch.var_mean(upcast(x), 0, correction=0)
    return mean, variance


class Moments(torch.autograd.Function):
    """Mean and biased variance of a matrix's columns, in at least float32; their gradient is a line in its values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance."""
        mean, variance = moments_reference(x)
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> Tensor:
        """Return the gradient towards the matrix."""
        x, mean = ctx.saved_tensors
        slope = of_variance * (2 / len(x))
        return (slope * x + (of_mean / len(x) - slope * mean)).to(x.dtype)
