"""The mixin of modules that stand for plain ones: same parameters, same `forward`, other code."""

from typing import Any, ClassVar

from torch import nn
from torch.nn.modules import module as hooks

from .compiling import is_exporting

_derived: dict[type, type] = {}  # a class each for those that FSDP or a parametrization derived from a replacement


class Fused:
    """A replacement: a subclass of this and of the plain class, which adds no state, so that instances change class.

    Where `takes` says no, somebody listens to a module inside or the model is exported, the plain class runs.
    """

    plain: ClassVar[type[nn.Module]]  # every replacement names its own

    @classmethod
    def refuses(cls, module: Any) -> str | None:  # noqa: ARG003
        """Why this module cannot be replaced, as a clause ("its norm has no weight"), or None.

        It is asked before the swap, and again when a plug-in is attached or detached: a class that reads parameters of
        modules inside has to refuse types of these that it does not know.
        """
        return None

    def takes(self, *args: Any, **kwargs: Any) -> bool:  # noqa: ARG002
        """Whether `fused` can run this call, by shape, precision and device."""
        return True

    def fused(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the plain `forward` does."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run `fused` or the plain class's `forward`."""
        if not isinstance(self, Fused):  # somebody kept this bound method beyond `undo`
            return type(self).forward(self, *args, **kwargs)
        if not is_exporting() and self.takes(*args, **kwargs) and unheard(*self.children()):  # type: ignore[attr-defined]
            return self.fused(*args, **kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]


def unheard(*modules: nn.Module | None) -> bool:
    """Whether modules and what is inside them have no hooks and no `forward` of their own instance."""
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
        if "forward" in m.__dict__:
            return False
        left.extend(m._modules.values())
    return True


def plain_class(kind: Any) -> Any:
    """Return a class with the plain class in place of its replacement, from which others may have derived it."""
    if not issubclass(kind, Fused):
        return kind
    if "plain" in vars(kind):
        return plain_class(kind.plain)
    if kind not in _derived:
        replacement: Any = next(one for one in kind.__mro__ if "plain" in vars(one))
        name = kind.__name__.replace(replacement.__name__, plain_class(replacement).__name__)
        kept = {key: value for key, value in vars(kind).items() if key not in ("__dict__", "__weakref__")}
        _derived[kind] = type(kind)(name, tuple(plain_class(base) for base in kind.__bases__), kept)
    return _derived[kind]
