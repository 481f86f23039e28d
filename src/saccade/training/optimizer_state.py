"""Save and load optimizer state by parameter name."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..settings import ConfigError
from .parallel import fill

Memory = dict[str, Any]  # JSON values that refer to tensors by name


def group_settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings of an optimizer's groups, to find later what its steps have changed."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def check_storable(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse an optimizer with state outside of parameters and groups."""
    if any(hasattr(layer, "rng") for layer in _layers(optimizer)):
        raise ConfigError(
            f"optim.name={name} was given; this optimizer uses its own random number generator, whose state cannot "
            "be saved, so the run could not be resumed exactly. Choose another optimizer"
        )


def optimizer_state(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], initial: list[dict[str, Any]]
) -> tuple[dict[str, Tensor], Memory]:
    """Return an optimizer's tensors by name, and its other state with references to them.

    Args:
        names: parameter names by `id`.
        initial: `group_settings` before the first step.
    """
    tensors: dict[str, Tensor] = {}
    states = []
    for number, layer in enumerate(_layers(optimizer)):
        states.append(
            {
                names[id(parameter)]: {
                    kind: _pack(value, f"{number}.{names[id(parameter)]}.{kind}", parameter, tensors)
                    for kind, value in state.items()
                }
                for parameter, state in layer.state.items()
            }
        )
    groups = []
    for number, (now, before) in enumerate(zip(group_settings(optimizer), initial, strict=True)):
        changed = {
            kind: value
            for kind, value in now.items()
            if kind != "lr" and (kind not in before or not _equal(before[kind], value))
        }
        groups.append({kind: _pack(value, f"group.{number}.{kind}", None, tensors) for kind, value in changed.items()})
    return tensors, {"states": states, "groups": groups}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer,
    names: Mapping[int, str],
    tensors: Mapping[str, Tensor],
    memory: Memory,
    *,
    counts_on: torch.device | None,
) -> None:
    """Load the result of `optimizer_state` into an optimizer.

    Args:
        tensors: full tensors, also if the parameters are sharded.
        counts_on: device of the step counts; None: unchanged.
    """
    parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    for layer, states in zip(_layers(optimizer), memory["states"], strict=True):
        for name, state in states.items():
            parameter = parameters[name]
            layer.state[parameter] = {
                kind: _unpack(value, parameter, tensors, counts_on if kind == "step" else None)
                for kind, value in state.items()
            }
    for group, changed in zip(optimizer.param_groups, memory["groups"], strict=True):
        group.update({kind: _unpack(value, None, tensors, None) for kind, value in changed.items()})


def _layers(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and the ones it wraps, such as lookahead's."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "_base_optimizer", None)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)


def _pack(value: Any, name: str, parameter: Tensor | None, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, with tensors replaced by their names."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name, "beside": parameter is not None and value.device == parameter.device}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(item, f"{name}.{number}", parameter, tensors) for number, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"the optimizer state {name} is of type {type(value).__name__}, which cannot be saved exactly; choose "
        "another optimizer with optim.name"
    )


def _unpack(value: Any, parameter: Tensor | None, tensors: Mapping[str, Tensor], place: torch.device | None) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" not in value:
        ((kind, items),) = value.items()
        return {"list": list, "tuple": tuple}[kind](_unpack(item, parameter, tensors, place) for item in items)
    tensor = tensors[value["tensor"]]
    if parameter is not None and tensor.shape == parameter.shape and tensor.dim() > 0:
        whole = torch.zeros_like(parameter, dtype=tensor.dtype)
        fill(whole, tensor)
        return whole
    if place is not None:
        return tensor.to(place)
    return tensor.to(parameter.device) if parameter is not None and value["beside"] else tensor
