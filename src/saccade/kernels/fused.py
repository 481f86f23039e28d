"""The mixin of modules that stand for plain ones: same parameters, same `forward`, other code."""

from typing import Any, ClassVar

from torch import nn
from torch.nn.modules import module as hooks


class Fused:
    """A replacement: a subclass of this and of the plain class, which adds no state, so that instances change class.

    Where `takes` says no, or somebody listens to a module inside, the plain class runs.
    """

    plain: ClassVar[type[nn.Module]]

    @classmethod
    def refuses(cls, module: Any) -> str | None:  # noqa: ARG003
        """Why this module cannot be replaced, as a clause ("its norm has no weight"), or None."""
        return None

    def takes(self, *args: Any, **kwargs: Any) -> bool:  # noqa: ARG002
        """Whether `fused` can run this call, by shape, precision and device."""
        return True

    def fused(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the plain `forward` does."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run `fused` or the plain class's `forward`."""
        if self.takes(*args, **kwargs) and unheard(*self.children()):  # type: ignore[attr-defined]
            return self.fused(*args, **kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]


def unheard(*modules: nn.Module | None) -> bool:
    """Whether no hook listens to modules or to what is inside them."""
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return False
    if hooks._global_backward_hooks or hooks._global_backward_pre_hooks:
        return False
    left = list(modules)
    while left:  # `modules()` takes twice as long, and this runs in every call
        m = left.pop()
        if m is None:
            continue
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return False
        left.extend(m._modules.values())
    return True


def plain_class(module: nn.Module | None) -> type:
    """Return the class that a module has where nothing is replaced; a replacement may stand for another one."""
    found: Any = type(module)
    while issubclass(found, Fused):
        found = found.plain
    return found
