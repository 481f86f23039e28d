"""Compilation of the blocks a network repeats: each kind once, not the whole network for every length and head."""

from collections import Counter

import torch
from torch import nn


def compile_parts(task: nn.Module) -> nn.Module:
    """Compile a task's repeated blocks in place, or the whole task if it repeats none; return what is to be called.

    Blocks of one kind and shape share what the compiler made, which takes a fraction of the time that compiling the
    whole takes, and the steps between them cost little where they are replayed as a CUDA graph.
    """
    blocks = repeated_blocks(task)
    if not blocks:
        return torch.compile(task)  # type: ignore[return-value]
    for block in blocks:
        block.compile()
    return task


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
