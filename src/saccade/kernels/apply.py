"""Swap replacements into a model, and back."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from ..plugins.attach import CHANGED
from . import table
from .fused import Fused, plain_class
from .switch import chosen, named
from .table import MODES, Kernel
from .triton.language import INSTALLED

NO_MODULE = "the model has no module that it replaces"


@dataclass(repr=False)
class Handle:
    """What was swapped into a model."""

    names: tuple[str, ...] = ()  # kernels that replace at least one module
    workarounds: tuple[str, ...] = ()  # of these, what is on even where kernels are off
    refused: dict[str, Counter[str]] = field(default_factory=dict)  # by kernel: why, and for how many modules
    unused: dict[str, str] = field(default_factory=dict)  # kernels that were asked for by name, and why they do nothing
    swapped: list[tuple[nn.Module, type[nn.Module], type[Fused]]] = field(default_factory=list)

    def undo(self) -> None:
        """Give every module its class back, unless something else has changed it since."""
        for module, before, replacement in reversed(self.swapped):
            if isinstance(module, replacement):  # a class derived since, as by FSDP, gets its own plain one
                kind = type(module)
                module.__class__ = before if kind is replacement else plain_class(kind)  # type: ignore[assignment]
        self.swapped.clear()
        self.names = self.workarounds = ()

    def __repr__(self) -> str:
        return f"<kernels {', '.join((*self.names, *self.workarounds)) or 'none'}: {len(self.swapped)} modules>"


def apply(model: nn.Module, mode: str, use: str = "auto") -> Handle:
    """Swap in the kernels that fit a model and the device it is on.

    Classes are matched exactly: a module with a parametrization, one that was sharded and one that has its replacement
    already stay as they are.

    Args:
        model: any module; its parameters, names and hooks stay as they are.
        mode: "train" or "infer".
        use: "auto" (what SACCADE_KERNELS says, else all), "off", or names, each with a `-` to leave it out.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} was given; allowed are {' and '.join(MODES)}")
    found, handle = chosen(use, table.names()), Handle()
    device = next(model.parameters(), torch.empty(0)).device.type
    for kernel in table.KERNELS:
        if kernel.name not in found and not kernel.workaround:
            continue
        why = unavailable(kernel, device, mode)
        if why is None and not _swap(model, kernel, handle):
            why = "; ".join(handle.refused.get(kernel.name, ())) or NO_MODULE
        if why is not None and kernel.name in named(use):
            handle.unused[kernel.name] = why
    return handle


def accelerate(model: nn.Module, mode: str = "train", use: str = "auto") -> Handle:
    """Swap fast replacements into a model for a loop of your own; `undo()` of what is returned gives every bit back.

    Call it before `torch.compile`, DDP and FSDP. Where nothing is faster, as on most CPUs, nothing is swapped.

    Args:
        model: any module, on the device that it will run on.
        mode: "train" or "infer".
        use: "auto" (what SACCADE_KERNELS says, else all), "off", or names, each with a `-` to leave it out.
    """
    return apply(model, mode, use)


@contextmanager
def removed(model: nn.Module) -> Iterator[None]:
    """Run a model's plain modules for a while."""
    found = [(m, type(m)) for m in model.modules() if isinstance(m, Fused)]
    strip(model)
    try:
        yield
    finally:
        for module, replacement in found:
            if type(module) is plain_class(replacement):
                module.__class__ = replacement


def strip(model: nn.Module) -> None:
    """Give every module of a model its plain class, whoever swapped it."""
    for module in model.modules():
        if isinstance(module, Fused):
            module.__class__ = plain_class(type(module))


def unavailable(kernel: Kernel, device: str, mode: str) -> str | None:
    """Return why a kernel does nothing on a device, as a clause, or None."""
    if device not in kernel.devices:
        return f"it only supports {' and '.join(kernel.devices)}"
    if mode not in kernel.modes:
        return f"it only supports {' and '.join(kernel.modes)}"
    if kernel.triton and not INSTALLED:
        return "Triton is not installed, or too old"
    return None


def _swap(model: nn.Module, kernel: Kernel, handle: Handle) -> bool:
    """Swap a kernel's replacements in; return whether there was a module for one."""
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
        handle.swapped.append((module, type(module), replacement))
        module.__class__ = replacement  # type: ignore[assignment]
    if len(handle.swapped) == count:
        return False
    if kernel.workaround:
        handle.workarounds += (kernel.name,)
    else:
        handle.names += (kernel.name,)
    return True


def _check_again(model: nn.Module) -> None:
    """Take replacements out that cannot stand for a module as a plug-in has left it."""
    for module in model.modules():
        if isinstance(module, Fused) and type(module).refuses(module) is not None:
            module.__class__ = plain_class(type(module))


CHANGED.append(_check_again)
