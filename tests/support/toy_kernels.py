"""Replacements for tests: one that computes what the plain class does and counts, one that fails as kernels fail."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from saccade.kernels.fused import Fused
from saccade.kernels.table import Kernel


class Block(nn.Module):
    """A plain block, whose replacement reads the parameters of what is inside."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x))


class FusedBlock(Fused, Block):
    plain = Block
    calls = 0

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        return None if type(module.linear) is nn.Linear else "its linear layer is another"

    def takes(self, x: Tensor) -> bool:
        return x.shape[0] < 100

    def fused(self, x: Tensor) -> Tensor:
        FusedBlock.calls += 1
        x = x + F.linear(F.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias), self.linear.weight)
        return x + self.linear.bias


class CountedLinear(Fused, nn.Linear):
    plain = nn.Linear
    calls = 0

    def fused(self, x: Tensor) -> Tensor:
        CountedLinear.calls += 1
        return F.linear(x, self.weight, self.bias)


class BrokenLinear(Fused, nn.Linear):
    plain = nn.Linear
    error: BaseException = RuntimeError("no error was set")
    after = 0  # calls that succeed

    def fused(self, x: Tensor) -> Tensor:
        BrokenLinear.after -= 1
        if BrokenLinear.after < 0:
            raise BrokenLinear.error
        return F.linear(x, self.weight, self.bias)


def row(*replacements: type[Fused], name: str = "toy", **more: Any) -> Kernel:
    """Return a row of the table, for a CPU if not said otherwise."""
    return Kernel(**{"name": name, "does": "a toy", "replacements": replacements, "devices": ("cpu",), **more})
