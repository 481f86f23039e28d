"""What an optimizer remembers of every parameter, by the parameter's name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .parallel import fill


def moments_of(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return the tensors an optimizer keeps, by parameter and kind, and the plain numbers beside them.

    Args:
        optimizer: that has made steps, or none yet.
        names: of the parameters, by their id.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, state in optimizer.state.items():
        name = names[id(parameter)]
        tensors |= {f"{name}.{kind}": value for kind, value in state.items() if isinstance(value, Tensor)}
        plain = {kind: value for kind, value in state.items() if isinstance(value, bool | int | float)}
        if plain:
            numbers[name] = plain
    return tensors, numbers


def put_back(
    optimizer: torch.optim.Optimizer,
    names: Mapping[int, str],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, dict[str, Any]],
    *,
    counts_on: torch.device | None,
) -> None:
    """Give an optimizer what `moments_of` returned.

    Args:
        optimizer: to fill.
        names: of the parameters, by their id.
        tensors: whole, whether or not the parameters are sharded.
        numbers: beside them.
        counts_on: where it wants its counts of steps; None leaves them on the CPU.
    """
    kept: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, kind = key.rpartition(".")
        kept.setdefault(name, {})[kind] = value
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        name = names[id(parameter)]
        moments: dict[str, Any] = dict(numbers.get(name, {}))
        for kind, value in kept.get(name, {}).items():
            if value.shape == parameter.shape and value.dim() > 0:
                moments[kind] = torch.zeros_like(parameter, dtype=value.dtype)
                fill(moments[kind], value)
            else:
                moments[kind] = value if counts_on is None else value.to(counts_on)
        if moments:
            optimizer.state[parameter] = moments
