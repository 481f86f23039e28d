"""Attach a plug-in to a model in place, and take it off again without a trace."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .tokens import HookPoint, Host, HostError, Layout, find_host

RECORD = "_saccade_handles"  # on the host, so that a copy of the model carries handles of its own
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
CHANGED: list[Callable[[nn.Module], None]] = []  # told of a model whose plug-ins are others now
PLAIN = (bool, int, float, str, type(None))  # a value that can be set without knowing what was there


class Plugin(Protocol):
    """What can be attached."""

    def install(self, host: Host, handle: "Handle") -> None:
        """Fit the plug-in to the host through the handle, which remembers how to undo it."""


class Removable(Protocol):
    """What undoes itself, as the handle of a hook does."""

    def remove(self) -> None:
        """Undo it."""


class Handle:
    """A plug-in on a model; `detach` restores the model's outputs and state dict keys exactly."""

    def __init__(self, model: nn.Module, plugin: Plugin) -> None:
        self.model = model
        self.plugin = plugin
        self._kind = _kind(model)
        self._hooks: list[Removable] = []
        self._modules: list[tuple[nn.Module, str]] = []
        self._replaced: list[tuple[nn.Module, str, Any]] = []

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        return f"<{type(self.plugin).__name__} on {type(self.model).__name__}: {count:,} parameters more>"

    def modules(self) -> list[nn.Module]:
        """Return the modules the plug-in brought, in the order it brought them."""
        places = self._modules + [(parent, name) for parent, name, _ in self._replaced]
        return [value for parent, name in places if isinstance(value := getattr(parent, name), nn.Module)]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters the plug-in brought."""
        return list({id(p): p for module in self.modules() for p in module.parameters()}.values())

    def add(self, parent: nn.Module, name: str, module: nn.Module) -> str:
        """Register a module of the plug-in under a free name; it takes the parent's device and precision."""
        if isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            raise HostError(f"a {type(parent).__name__} would run {name!r} as one of its own modules; add it elsewhere")
        number, free = 2, name
        while hasattr(parent, free):
            free, number = f"{name}_{number}", number + 1
        _make_like(module, next(parent.parameters(), next(self.model.parameters(), None)))
        module.train(self.model.training)
        parent.add_module(free, module)
        self._modules.append((parent, free))
        return free

    def listen(self, place: HookPoint, function: Callable[[Tensor], Tensor]) -> None:
        """Pass what goes through a place through `function`, which a copied model copies: no lambda or closure."""
        module = self.model.get_submodule(place.path)
        if place.side == "input":
            self.hook(module.register_forward_pre_hook(_OnInput(function), with_kwargs=True))
        else:
            self.hook(module.register_forward_hook(_OnOutput(function)))

    def hook(self, handle: Removable) -> None:
        """Keep a hook the plug-in registered itself, to be removed by `detach`."""
        self._hooks.append(handle)

    def replace(self, parent: nn.Module, name: str, value: Any) -> None:
        """Set an attribute of a module, remembering what was there (or that nothing of its own was).

        A module set in the place of another takes over its device, precision and mode and shares its hooks, so that
        other plug-ins on it go on working.
        """
        own = any(name in kept for kept in (parent.__dict__, parent._modules, parent._parameters, parent._buffers))
        old = getattr(parent, name) if own else _ABSENT
        self._replaced.append((parent, name, old))
        if isinstance(old, nn.Module) and isinstance(value, nn.Module):
            _make_like(value, next(old.parameters(), next(self.model.parameters(), None)))
            value.train(old.training)
            if not any(getattr(value, hooks) for hooks in HOOKS):
                for hooks in HOOKS:
                    setattr(value, hooks, getattr(old, hooks))
        setattr(parent, name, value)

    def detach(self) -> None:
        """Take the plug-in off; the model computes and saves what it did before, to the bit."""
        handles = attached(self.model)
        if self not in handles:
            raise RuntimeError("this plug-in is not on the model (any more)")
        later = handles[handles.index(self) + 1 :]
        for parent, name, _ in self._replaced:
            above = next((h for h in later if h._index(parent, name) is not None), None)
            if above is not None and not isinstance(getattr(parent, name), PLAIN):
                raise RuntimeError(f"detach {type(above.plugin).__name__} first: it was attached on top of this one")
        for hook in self._hooks:
            hook.remove()
        for parent, name in reversed(self._modules):
            delattr(parent, name)
        for parent, name, value in reversed(self._replaced):
            heir = next((h for h in later if h._index(parent, name) is not None), None)
            if heir is None:
                self._restore(parent, name, value)
            else:
                heir._replaced[heir._index(parent, name) or 0] = (parent, name, value)
        handles.remove(self)
        if not handles:
            delattr(self.model, RECORD)
        for notify in CHANGED:
            notify(self.model)

    def _restore(self, parent: nn.Module, name: str, value: Any) -> None:
        if value is _ABSENT:
            delattr(parent, name)
            return
        current = getattr(parent, name)
        if isinstance(value, nn.Module) and isinstance(current, nn.Module):
            # It was off the model while that may have been moved, or switched between training and evaluation.
            for was, now in zip(self._kind, _kind(self.model), strict=True):
                if was != now:
                    value.to(now)
            if value.training != current.training:
                value.train(current.training)
        setattr(parent, name, value)

    def _index(self, parent: nn.Module, name: str) -> int | None:
        places = [i for i, (p, n, _) in enumerate(self._replaced) if p is parent and n == name]
        return places[0] if places else None


def attach(
    model: nn.Module,
    plugin: Plugin,
    *,
    blocks: str | Sequence[str] | None = None,
    grid: tuple[int, int] | None = None,
    prefix_tokens: int | None = None,
    layout: Layout | None = None,
) -> Handle:
    """Attach a plug-in to a model, in place.

    Args:
        model: a timm model, a Hugging Face model or any module of transformer blocks.
        plugin: what to attach; it can be attached to several models.
        blocks: paths of the host's blocks, if they are not found by themselves.
        grid: the token grid, if it cannot be told.
        prefix_tokens: how many tokens stand before the word tokens, if it cannot be told.
        layout: layout of the final features, if it cannot be told.

    Returns:
        A handle whose `detach()` undoes it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach takes a torch.nn.Module, got {type(model).__name__}")
    if isinstance(plugin, type) or not hasattr(plugin, "install"):
        given = f"the class {plugin.__name__}" if isinstance(plugin, type) else type(plugin).__name__
        raise TypeError(f"attach takes a plug-in such as saccade.ContextBroadcast(), got {given}")
    host = find_host(model, blocks=blocks, grid=grid, prefix_tokens=prefix_tokens, layout=layout)
    handle = Handle(model, plugin)
    if not hasattr(model, RECORD):
        setattr(model, RECORD, [])
    attached(model).append(handle)
    try:
        with torch.no_grad():
            plugin.install(host, handle)
    except BaseException:
        handle.detach()
        raise
    for notify in CHANGED:
        notify(model)
    return handle


def attached(model: nn.Module) -> list[Handle]:
    """Return the handles of the plug-ins on a model, first attached first; a copied model has its own."""
    return getattr(model, RECORD, [])


def _kind(model: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    first = next(model.parameters(), None)
    return (None, None) if first is None else (first.device, first.dtype)


def _make_like(module: nn.Module, parameter: nn.Parameter | None) -> None:
    if parameter is not None:
        module.to(device=parameter.device, dtype=parameter.dtype if parameter.is_floating_point() else None)


class _Absent:
    """Marks an attribute that a module did not have of its own; stays one object when copied."""

    def __copy__(self) -> "_Absent":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Absent":
        return self

    def __reduce__(self) -> str:
        return "_ABSENT"


_ABSENT = _Absent()


class _OnInput:
    """Forward pre-hook: the module's first argument goes through a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (self.function(args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: self.function(kwargs[name])}


class _OnOutput:
    """Forward hook: the module's output, or its first part, goes through a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (self.function(output[0]), *output[1:])
        return self.function(output)
