"""Compilation of the blocks a network repeats: each kind once, not the whole network for every length and head."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

Kind = tuple[type, tuple[tuple[str, tuple[int, ...]], ...], tuple[tuple[str, str, float], ...]]


def compile_parts(task: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """Compile a task's repeated blocks in place, or the whole task if it repeats none; return what is to be called.

    Blocks of one kind and shape share what the compiler made, which takes a fraction of the time that compiling the
    whole takes, and the steps between them cost little where they are replayed as a CUDA graph.

    The compiler keeps what it made with the code it was made from, and that code is one for all modules. It checks
    shapes and numbers before it uses it again and gives up after a few that differ, but not hooks: a block that a
    plug-in listens to would be given what was made for one without. So each kind gets code of its own, and a block with
    hooks is a kind. Shapes stay constants: the shape of another kind must not make variables of this one's.
    """
    blocks = repeated_blocks(task)
    if not blocks:
        return torch.compile(task, backend=backend, dynamic=False)  # type: ignore[return-value]
    own: dict[Kind, FunctionType] = {}
    for block in blocks:
        call = _copied_call() if _has_hooks(block) else own.setdefault(_kind(block), _copied_call())
        compiled = torch.compile(MethodType(call, block), backend=backend, dynamic=False)
        block._compiled_call_impl = compiled  # as `nn.Module.compile`
    return task


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled parts as they were written: a few batches of other shapes do not repay being compiled for."""
    return torch.compiler.set_stance("force_eager")


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return nn.Module._call_impl(self, *args, **kwargs)


def _copied_call() -> FunctionType:
    """Return `_call` with a code object of its own."""
    return FunctionType(_call.__code__.replace(), _call.__globals__, _call.__name__)


def _kind(block: nn.Module) -> Kind:
    shapes = tuple((name, tuple(value.shape)) for name, value in block.named_parameters())
    numbers = tuple(  # rates of drop path differ from block to block
        (name, key, value)
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, float)
    )
    return type(block), shapes, numbers


def _has_hooks(block: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())


def repeated_blocks(task: nn.Module) -> list[nn.Module]:
    """Return the smallest members of lists of modules whose kind the task has more than once: blocks, not stages."""
    members = [
        member
        for module in task.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for member in module
        if not isinstance(member, nn.ModuleList | nn.Sequential) and len(list(member.children())) > 1
    ]
    kinds = Counter(type(member) for member in members)
    repeated = [member for member in members if kinds[type(member)] > 1]
    known = {id(member) for member in repeated}
    return [member for member in repeated if not any(id(m) in known for m in member.modules() if m is not member)]
