"""Swap replacements into a model, and back."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from .fused import Fused, plain_class
from .switch import chosen
from .table import KERNELS, MODES, Kernel
from .triton.language import INSTALLED


@dataclass
class Handle:
    """What was swapped into a model."""

    names: tuple[str, ...] = ()  # kernels that replace at least one module
    refused: dict[str, Counter[str]] = field(default_factory=dict)  # by kernel: why, and for how many modules
    swapped: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = field(default_factory=list)

    def undo(self) -> None:
        """Give every module its class back, unless something else has changed it since."""
        for module, plain, replacement in reversed(self.swapped):
            if type(module) is replacement:
                module.__class__ = plain
        self.swapped.clear()
        self.names = ()


def apply(model: nn.Module, mode: str, use: str = "auto") -> Handle:
    """Swap in the kernels that fit a model and the device it is on.

    Args:
        model: any module; its parameters, names and hooks stay as they are.
        mode: "train" or "infer".
        use: "auto" (what SACCADE_KERNELS says, else all), "off", or names, each with a `-` to leave it out.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} was given; allowed are {' and '.join(MODES)}")
    names, handle = chosen(use, [kernel.name for kernel in KERNELS]), Handle()
    device = next(model.parameters(), torch.empty(0)).device.type
    for kernel in KERNELS:
        if (kernel.name in names or kernel.workaround) and unavailable(kernel, device, mode) is None:
            _swap(model, kernel, handle)
    return handle


def accelerate(model: nn.Module, mode: str = "train") -> Handle:
    """Swap fast replacements into a model for a training loop of your own; `undo()` gives every bit back.

    Args:
        model: any module, on the device that it will run on.
        mode: "train" or "infer".
    """
    return apply(model, mode)


@contextmanager
def removed(model: nn.Module) -> Iterator[None]:
    """Run a model's plain modules."""
    found = [(m, type(m)) for m in model.modules() if isinstance(m, Fused)]
    for module, _ in found:
        module.__class__ = plain_class(module)
    try:
        yield
    finally:
        for module, replacement in found:
            module.__class__ = replacement


def unavailable(kernel: Kernel, device: str, mode: str) -> str | None:
    """Return why a kernel does nothing on a device, as a clause, or None."""
    if device not in kernel.devices:
        return f"it is made for {' and '.join(kernel.devices)}"
    if mode not in kernel.modes:
        return f"it is made for {' and '.join(kernel.modes)}"
    if kernel.triton and not INSTALLED:
        return "Triton is not installed, or too old"
    return None


def _swap(model: nn.Module, kernel: Kernel, handle: Handle) -> None:
    roots = [m for m in model.modules() if isinstance(m, kernel.within)] if kernel.within else [model]
    replacements = {replacement.plain: replacement for replacement in kernel.replacements}
    count = len(handle.swapped)
    for module in dict.fromkeys(m for root in roots for m in root.modules()):
        replacement = replacements.get(type(module))
        if replacement is None:
            continue
        if (reason := replacement.refuses(module)) is not None:
            handle.refused.setdefault(kernel.name, Counter())[reason] += 1
            continue
        handle.swapped.append((module, type(module), replacement))  # type: ignore[arg-type]
        module.__class__ = replacement
    if len(handle.swapped) > count:
        handle.names += (kernel.name,)
