"""Gradients that kernels leave in parts, those of all layers of a block added up at once.

A norm's weights, biases and the kernels of convolutions get as gradients sums over all positions, of which every
program of a GPU kernel makes a part. To add these up takes one more kernel for each layer, and starting that takes
longer than running it. A port stands for some weights in the backward pass: its gradient is the parts, and those of all
ports are added up by one kernel.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import halves
from .small_triton import MOST, WIDE, add_up, split
from .switch import on


class Due(NamedTuple):
    """Weights whose gradients a kernel makes side by side, and in how many parts.

    None stands for a bias that the layer does not have, or that has its gradient from elsewhere; it is as long as the
    first weight.
    """

    parts: int
    weights: tuple[Tensor | None, ...]

    @property
    def first(self) -> Tensor:
        """The weight that is always there."""
        assert self.weights[0] is not None
        return self.weights[0]

    @property
    def widths(self) -> list[int]:
        """How many numbers of a part are whose."""
        return [len(self.first) if weight is None else weight.numel() for weight in self.weights]


def due_by_image(x: Tensor, *weights: Tensor | None) -> list[Due]:
    """Return what is due for weights, each by itself, that get their gradients in a part for every image of a batch."""
    return [Due(len(x), (weight,)) for weight in weights if weight is not None]


PORTS: dict[Tensor, tuple[Due, Tensor]] = {}  # by the first weight, while the layers of a block run
_REFUSED: list[bool] = []  # not empty where none are to be opened


def refuse_ports(refused: bool) -> None:
    """Have none opened, or allow it again: a compiler takes nothing that is changed and computed again for backward."""
    _REFUSED[:] = [True] if refused else []


def may_open_ports() -> bool:
    """Tell whether ports are not refused."""
    return on("ports") and not _REFUSED


def open_ports(dues: Iterable[Due]) -> None:
    """Make ports for what the kernels of some layers are about to ask for, until `close_ports`."""
    found = [due for due in dues if any(_asks(weight) for weight in due.weights)]
    PORTS.clear()
    if found:
        layout = tuple((due.parts, sum(due.widths)) for due in found)
        ports = Ports.apply(layout, *(weight for due in found for weight in due.weights))
        for due, port in zip(found, ports, strict=True):
            PORTS[due.first] = (due, port)


def _asks(weight: Tensor | None) -> bool:
    return weight is not None and weight.requires_grad


def close_ports() -> None:
    """Forget the ports."""
    PORTS.clear()


def ports_for(dues: Sequence[Due]) -> tuple[Tensor, ...]:
    """Return the ports of a layer, or nothing: unless all were opened, and for the same, the layer adds up itself."""
    found = [PORTS[due.first] for due in dues if halves.compiles() and due.first in PORTS]
    same = len(found) == len(dues) and all(_same(due, one[0]) for due, one in zip(dues, found, strict=True))
    return tuple(port for _, port in found) if same else ()


def _same(one: Due, other: Due) -> bool:
    lengths = one.parts == other.parts and len(one.weights) == len(other.weights)
    return lengths and all(a is b for a, b in zip(one.weights, other.weights, strict=True))


def add_all_up(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the sums of parts, N each, those of `MOST` arrays by one kernel."""
    sums: list[Tensor] = []
    for i in range(0, len(parts), MOST):
        some = list(parts[i : i + MOST])
        sums.extend(split(add_up(some), [one.shape[1] for one in some], WIDE))
    return sums


class Ports(torch.autograd.Function):
    """For every group of weights a tensor that nobody reads, whose gradient is the parts of theirs."""

    @staticmethod
    def forward(ctx: Any, layout: tuple[tuple[int, int], ...], *weights: Tensor | None) -> tuple[Tensor, ...]:
        """Return the ports, parts, N each as laid out."""
        ctx.save_for_backward(*weights)
        like = next(weight for weight in weights if weight is not None)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return tuple(like.new_empty(shape, dtype=dtype) for shape in layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *parts: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of those that ask for one."""
        found: list[Tensor | None] = []
        left = list(ctx.saved_tensors)
        for sums in add_all_up(parts):
            at, first = 0, left[0]
            while at < len(sums):
                weight = left.pop(0)
                end = at + (len(first) if weight is None else weight.numel())
                asked = ctx.needs_input_grad[len(found) + 1]
                found.append(sums[at:end].view(weight.shape).to(weight.dtype) if asked else None)
                at = end
        return None, *found
