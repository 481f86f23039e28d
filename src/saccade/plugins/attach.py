"""Attach plug-ins to a model in place, and detach them completely."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .tokens import HookPoint, Host, HostError, Layout, find_host

RECORD = "_saccade_handles"  # stored on the model, so that copies have their own handles
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
CHANGED: list[Callable[[nn.Module], None]] = []  # called after a model's plug-ins have changed
VALUE_TYPES = (bool, int, float, str, type(None))  # values that can be replaced directly


class Plugin(Protocol):
    """Protocol of plug-ins."""

    def install(self, host: Host, handle: "Handle") -> None:
        """Install the plug-in through the handle, which records how to undo it."""


class Removable(Protocol):
    """An object with `remove`, such as a hook's handle."""

    def remove(self) -> None:
        """Undo the change."""


class Handle:
    """An attached plug-in; `detach` restores the model's outputs and state dict keys exactly."""

    def __init__(self, model: nn.Module, plugin: Plugin) -> None:
        self.model = model
        self.plugin = plugin
        self._kind = _kind(model)
        self._hooks: list[Removable] = []
        self._modules: list[tuple[nn.Module, str]] = []
        self._replaced: list[tuple[nn.Module, str, Any]] = []

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        return f"<{type(self.plugin).__name__} on {type(self.model).__name__}: {count:,} additional parameters>"

    def modules(self) -> list[nn.Module]:
        """Return the plug-in's modules, in order of registration."""
        places = self._modules + [(parent, name) for parent, name, _ in self._replaced]
        return [value for parent, name in places if isinstance(value := getattr(parent, name), nn.Module)]

    def parameters(self) -> list[nn.Parameter]:
        """Return the plug-in's parameters."""
        return list({id(p): p for module in self.modules() for p in module.parameters()}.values())

    def add(self, parent: nn.Module, name: str, module: nn.Module) -> str:
        """Register a module of the plug-in under a free name, on the parent's device and dtype."""
        if isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            raise HostError(
                f"a {type(parent).__name__} would run {name!r} as one of its own modules; add it to another module"
            )
        number, free = 2, name
        while hasattr(parent, free):
            free, number = f"{name}_{number}", number + 1
        _make_like(module, next(parent.parameters(), next(self.model.parameters(), None)))
        module.train(self.model.training)
        parent.add_module(free, module)
        self._modules.append((parent, free))
        return free

    def listen(self, place: HookPoint, function: Callable[[Tensor], Tensor]) -> None:
        """Apply `function` to the features at a hook point; it is copied with the model, so no lambda or closure."""
        module = self.model.get_submodule(place.path)
        if place.side == "input":
            self.hook(module.register_forward_pre_hook(_OnInput(function), with_kwargs=True))
        else:
            self.hook(module.register_forward_hook(_OnOutput(function)))

    def hook(self, handle: Removable) -> None:
        """Record a hook that the plug-in registered, to be removed by `detach`."""
        self._hooks.append(handle)

    def replace(self, parent: nn.Module, name: str, value: Any) -> None:
        """Set an attribute of a module, and record its previous value.

        A replaced module's device, dtype, mode and hooks are taken over, so that other plug-ins keep working.
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
        """Detach the plug-in; the model's outputs and state dict are bit-identical to those before."""
        handles = attached(self.model)
        if self not in handles:
            raise RuntimeError("this plug-in is not (or no longer) attached to the model")
        later = handles[handles.index(self) + 1 :]
        for parent, name, _ in self._replaced:
            above = next((h for h in later if h._index(parent, name) is not None), None)
            if above is not None and not isinstance(getattr(parent, name), VALUE_TYPES):
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
            # The model may have been moved or switched between training and evaluation in the meantime.
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
        plugin: the plug-in, which can be attached to several models.
        blocks: paths of the model's blocks, if not detected.
        grid: the token grid, if not detected.
        prefix_tokens: number of prefix tokens, if not detected.
        layout: layout of the final features, if not detected.

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
    """Return the handles of a model's plug-ins in order of attachment; copies have their own."""
    return getattr(model, RECORD, [])


def _kind(model: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    first = next(model.parameters(), None)
    return (None, None) if first is None else (first.device, first.dtype)


def _make_like(module: nn.Module, parameter: nn.Parameter | None) -> None:
    if parameter is not None:
        module.to(device=parameter.device, dtype=parameter.dtype if parameter.is_floating_point() else None)


class _Absent:
    """Marker for an attribute that a module did not have; a singleton, also when copied."""

    def __copy__(self) -> "_Absent":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Absent":
        return self

    def __reduce__(self) -> str:
        return "_ABSENT"


_ABSENT = _Absent()


class _OnInput:
    """Forward pre-hook that applies a function to the first argument."""

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
    """Forward hook that applies a function to the output, or its first element."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (self.function(output[0]), *output[1:])
        return self.function(output)
