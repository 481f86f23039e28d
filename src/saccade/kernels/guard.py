"""Run a model with kernels, and without them from the call on in which they fail."""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..support.wording import is_memory_error
from .apply import apply, strip

FIRST = 8  # calls of a kind that are made again: compiling, capturing and replaying a graph are over by then
Result = TypeVar("Result")


class Guard:
    """Kernels in a model that are left out for good when one fails to compile or to start.

    Args:
        model: as it will run, on its device, not yet compiled.
        mode: "train" or "infer".
        use: as `apply` takes it.
        renew: called when kernels were taken out, to compile the model anew.
    """

    def __init__(self, model: nn.Module, mode: str, use: str = "auto", *, renew: Callable[[], Any] = lambda: None):
        self.model, self.mode, self.use, self.renew = model, mode, use, renew
        strip(model)  # of what somebody else applied, so that all there is can be taken out
        self.handle = apply(model, mode, use)
        self.failure = ""  # what made kernels be left out: an error's first line
        self.calls: Counter[Hashable] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """Kernels that run."""
        return self.handle.names

    def describe(self) -> str:
        """Return which kernels run, and why those do not that were asked for by name."""
        unused = [f"{name} is not used: {why}" for name, why in self.handle.unused.items()]
        return "; ".join([f"kernels: {', '.join(self.names) or 'none'}", *unused])

    def run(
        self, work: Callable[[], Result], *, changes: Callable[[], Iterable[Tensor]] = tuple, kind: Hashable = None
    ) -> Result:
        """Return what `work` returns; where it fails with kernels, leave them out and do it again.

        Args:
            work: what may be done again from the start.
            changes: gives the tensors that it changes in place; they are brought back first.
            kind: of the call, such as shapes: each kind is guarded in its first calls alone. None is guarded always.
        """
        if not self.names or self.calls[kind] >= FIRST:
            return work()
        if kind is not None:
            self.calls[kind] += 1
        result: list[Result] = []
        failure = self.failure_of(lambda: result.append(work()), changes=changes)
        if not failure:
            return result[0]
        names = self.leave_out(failure)
        try:
            again = work()
        except Exception:  # the plain model's own, of which kernels are innocent
            self.handle.undo()
            self.handle, self.failure = apply(self.model, self.mode, self.use), ""
            self.renew()
            raise
        self.warn(names)
        return again

    def failure_of(self, work: Callable[[], object], *, changes: Callable[[], Iterable[Tensor]] = tuple) -> str:
        """Return what an error of `work` says first, after what it changed was brought back; nothing without one."""
        kept = [(tensor, tensor.detach().clone()) for tensor in changes()]
        try:
            work()
        except Exception as error:  # of Triton, Dynamo, Inductor or CUDA: they share no class
            if isinstance(error, torch.OutOfMemoryError) or is_memory_error(error) or _is_of_a_reader(error):
                raise
            failure = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
        else:
            return ""
        if any(tensor.is_cuda for tensor, _ in kept):  # what the call has started may still write, on another stream
            torch.cuda.synchronize()
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)
        return failure

    def leave_out(self, failure: str) -> tuple[str, ...]:
        """Take the kernels out for good, but what is on even where they are off; return their names."""
        names, self.failure = self.names, failure
        self.handle.undo()
        self.handle = apply(self.model, self.mode, "off")
        self.renew()
        return names

    def warn(self, names: Iterable[str]) -> None:
        """Warn that kernels were left out."""
        warnings.warn(
            f"the kernels {', '.join(names)} are disabled, because one of them fails here: {self.failure}. Plain "
            "PyTorch computes the same result, more slowly; --kernels off (in Python kernels='off') disables them "
            "from the start",
            stacklevel=3,
        )


def _is_of_a_reader(error: Exception) -> bool:
    """Whether a process that reads samples died, which PyTorch tells by an error wherever this one is."""
    return str(error).startswith("DataLoader worker")
