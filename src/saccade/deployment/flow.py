"""Follow a model's tensors through one run: who makes them, and who reads them."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Flow(TorchDispatchMode):
    """One run of a model that records who makes and who reads the tensors between two kinds of modules.

    Tensors are told apart by their storage, so that a view does not hide a reader; what is of interest is kept alive
    meanwhile, lest its memory be given to another.

    Args:
        makers: modules whose outputs are followed, each with the axis of the channels there.
        takers: modules that may take them, each with the axis of the channels there.
    """

    def __init__(self, makers: dict[nn.Module, int], takers: dict[nn.Module, int]) -> None:
        super().__init__()
        self.makers, self.takers = makers, takers
        self.running: list[nn.Module] = []
        self.readers: dict[int, set[nn.Module | None]] = defaultdict(set)
        self.made: dict[int, tuple[nn.Module, Tensor]] = {}
        self.taken: dict[nn.Module, list[Tensor | None]] = defaultdict(list)

    def follow(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Run the model and record."""
        handles = []
        for module in chain(self.makers, self.takers):
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self:
                output = run(model, args)
        finally:
            for handle in handles:
                handle.remove()
        for tensor in tensors_of(output):
            self.readers[_storage(tensor)].add(None)  # the caller reads it

    def pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return makers and takers such that the one's outputs, all of them, are read by the other and by none else."""
        outputs: dict[nn.Module, list[int]] = defaultdict(list)
        for key, (maker, _) in self.made.items():
            outputs[maker].append(key)
        found = []
        for taker, inputs in self.taken.items():
            makers = {self._maker(tensor, taker) for tensor in inputs}
            source = makers.pop()
            if makers or source is None or not self._private(source) or not self._private(taker):
                continue
            if all(self.readers[key] == {taker} for key in outputs[source]):
                found.append((source, taker))
        return found

    def _maker(self, tensor: Tensor | None, taker: nn.Module) -> nn.Module | None:
        """Return who made what a taker got, if it is all of it with the channels where they were."""
        if tensor is None or _storage(tensor) not in self.made:
            return None
        maker, output = self.made[_storage(tensor)]
        given, got = self.makers[maker] % output.ndim, self.takers[taker] % tensor.ndim
        if tensor.shape == output.shape and tensor.stride() == output.stride():
            return maker if given == got else None
        # A map of tokens made of a sequence: channels stay the last axis.
        last = given == output.ndim - 1 and got == tensor.ndim - 1 and tensor.shape[-1] == output.shape[-1]
        whole = tensor.is_contiguous() and output.is_contiguous() and tensor.numel() == output.numel()
        return maker if last and whole else None

    def _private(self, module: nn.Module) -> bool:
        """Whether nobody but a module reads its weights and constants."""
        return all(
            self.readers[_storage(tensor)] <= {module} for tensor in chain(module.parameters(), module.buffers())
        )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.running.append(module)
        if module in self.takers:
            alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
            self.taken[module].append(args[0] if alone else None)

    def _leave(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self.running.pop()
        if module in self.makers and isinstance(output, Tensor):
            key = _storage(output)
            self.made[key] = (module, output)
            self.readers[key] = set()  # whoever read this memory before read the layer's own steps, or another tensor

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not getattr(func, "is_view", False):  # a view reads nothing; who reads the view is seen
            reader = self.running[-1] if self.running else None
            for value in tree_leaves((args, kwargs or {})):
                if isinstance(value, Tensor):
                    self.readers[_storage(value)].add(reader)
        return func(*args, **(kwargs or {}))


def run(model: nn.Module, args: tuple[Any, ...]) -> Any:
    """Call a model without gradients."""
    with torch.no_grad():  # on copies: a model may write to its input
        return model(*(value.clone() if isinstance(value, Tensor) else value for value in args))


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output: one, or those of a dict, list or tuple of them, however deep."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for key in output for tensor in tensors_of(output[key])]
    if isinstance(output, list | tuple) and output:
        return [tensor for value in output for tensor in tensors_of(value)]
    raise TypeError(
        f"the model returned {type(output).__name__} where a tensor was expected; optimize compares outputs that are "
        "tensors, or dicts, lists and tuples of them: wrap the model so that it returns one of these"
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
