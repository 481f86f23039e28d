"""Hear what passes a model's modules without changing the model or its answer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Heard = dict[nn.Module, Tensor]  # the last output of each module listened to


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for a while; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def listen(modules: Iterable[nn.Module]) -> Iterator[Heard]:
    """Keep the last output of each module; of a tuple, its first part."""
    heard: Heard = {}

    def keep(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        heard[module] = output[0] if isinstance(output, tuple) else output

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
