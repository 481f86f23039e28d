"""Padding and modality masks of a model's current forward pass."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ._parts import takes_positions
from .attach import Handle
from .tokens import Host, MaskTaker

Part = Literal["all", "image", "text"]

RECOMPUTE = "_gradient_checkpointing_func"  # attribute of transformers modules


class Members:
    """The tokens that take part in the current forward pass.

    The mask is that of the innermost running module that takes one, so that a block averages over what its attention
    sees. Gradient checkpointing uses the mask of the original pass.
    """

    def __init__(self, host: Host, tokens: Part) -> None:
        self.tokens = tokens
        self.causal = host.causal
        self.takers: list[nn.Module] = []  # modules that take a mask
        self.depth = 0  # number of running ones
        self.valid: Tensor | None = None  # B, N
        self.innermost: Tensor | None = None  # mask of the last block, which may cover text and image
        self.text_length: int | None = None

    def call_state(self) -> dict[str, Any]:
        """Return the state of the current pass, by attribute."""
        return {name: getattr(self, name) for name in ("depth", "valid", "innermost", "text_length")}

    def install(self, host: Host, handle: Handle) -> None:
        """Add hooks to the model's modules that take a mask."""
        for taker in host.mask_takers:
            module, call = host.model.get_submodule(taker.path), _Call(self, taker)
            self.takers.append(module)
            handle.hook(module.register_forward_pre_hook(call.enter, with_kwargs=True))
            handle.hook(module.register_forward_hook(call.leave, always_call=True))
            handle.hook(_Unwrapping(module, self))
        outermost = next((taker for taker in host.mask_takers if not taker.path), None)
        if host.text and outermost is not None and takes_positions(host.model):
            handle.hook(host.model.register_forward_pre_hook(_Places(outermost), with_kwargs=True))
        for module in host.model.modules():
            # nn.TransformerEncoder would convert padded batches to nested tensors.
            if hasattr(module, "use_nested_tensor"):
                handle.replace(module, "use_nested_tensor", False)
        if host.joint is not None:
            module, call = host.model.get_submodule(host.joint.path), _Call(self, host.joint)
            handle.hook(module.register_forward_hook(call.join, with_kwargs=True))
            words: nn.Module = module.get_submodule("text_embeddings")
            handle.hook(words.register_forward_pre_hook(self._place, with_kwargs=True))

    def _place(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Forward pre-hook of a multimodal model's text embedding, like `_Places`."""
        if self.valid is None or kwargs.get("position_ids") is not None:
            return None
        return args, {**kwargs, "position_ids": count_places(self.valid)}

    def final(self, x: Tensor) -> Tensor | None:
        """Return the mask of the final tokens, B, N, C, which may be of text and image."""
        return self.innermost if self.valid is not None and self.valid.shape != x.shape[:2] else self.valid

    def mask(self, x: Tensor) -> Tensor | None:
        """Return the mask of tokens B, N, C: B, N, or None for all."""
        mask = self.valid
        if mask is not None and mask.shape != x.shape[:2]:
            raise ValueError(
                f"the attention mask is for {tuple(mask.shape)} tokens, but the input has {tuple(x.shape[:2])}; give "
                "a mask of shape batch, tokens, and attach the plug-in to the part of the model that the mask is for"
            )
        if self.tokens == "all":
            return mask
        if self.text_length is None:
            raise RuntimeError(
                f"tokens={self.tokens!r}: a block that is run by itself does not know where the text ends; run the "
                "whole model, or choose tokens='all'"
            )
        text = torch.arange(x.shape[1], device=x.device) < self.text_length
        part = text if self.tokens == "text" else ~text
        return part.expand(x.shape[:2]) if mask is None else mask & part


class WithMask:
    """Calls a module with features and the current mask."""

    def __init__(self, module: nn.Module, members: Members) -> None:
        self.module = module
        self.members = members

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the module."""
        return self.module(x, self.members.mask(x))


class _Call:
    """Hooks of a module that takes a mask."""

    def __init__(self, members: Members, taker: MaskTaker) -> None:
        self.members = members
        self.taker = taker
        self.running = False
        self.outer: Tensor | None = None

    def enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: activate this module's mask."""
        members = self.members
        self.running, self.outer = True, members.valid
        members.depth += 1
        if members.depth == 1:
            for taker in members.takers:
                if hasattr(taker, RECOMPUTE):
                    _Recomputing.of(taker).add(members)
        given = self.taker.pick(args, kwargs)
        if members.depth == 1 or given is None or isinstance(given, Tensor):
            members.valid = read_mask(given, padding_is_true=self.taker.name != "attention_mask")
            members.innermost = members.valid
        cache = kwargs.get("past_key_values")
        if members.causal and members.depth == 1 and cache is not None and cache.get_seq_length():
            raise ValueError(
                "tokens of earlier calls are cached and missing from the mean; generate with use_cache=False"
            )

    def leave(self, _module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        """Forward hook, also called after errors: restore the enclosing module's mask."""
        if not self.running:
            return
        members = self.members
        members.depth -= 1
        members.valid, self.outer, self.running = self.outer, None, False
        if members.depth == 0:
            members.text_length = members.innermost = None

    def join(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        """Forward hook of a joint embedding: extend the text's mask to text and image."""
        self.members.text_length = self.taker.pick(args, kwargs).shape[1]


class _Recomputing:
    """A transformers module's checkpointing function, with the mask of the original pass.

    Since version 5.23 only the module's forward is recomputed, without its hooks.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.members: list[Members] = []

    @classmethod
    def of(cls, module: nn.Module) -> "_Recomputing":
        """Return a module's instance, creating or renewing it if needed."""
        if not isinstance(getattr(module, RECOMPUTE), cls):
            setattr(module, RECOMPUTE, cls(getattr(module, RECOMPUTE)))
        found: _Recomputing = getattr(module, RECOMPUTE)
        return found

    def add(self, members: Members) -> None:
        """Add a plug-in's masks."""
        if members not in self.members:
            self.members.append(members)

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function that may be recomputed."""
        return self.function(_Again(forward, self.members), *args, **kwargs)


class _Again:
    """A function bound to the current masks."""

    def __init__(self, forward: Callable[..., Any], members: Sequence[Members]) -> None:
        self.forward = forward
        self.counted = [(one, one.call_state()) for one in members]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        before = [(one, one.call_state()) for one, _ in self.counted]
        for one, state in self.counted:
            one.__dict__.update(state)
        try:
            return self.forward(*args, **kwargs)
        finally:
            for one, state in before:
                one.__dict__.update(state)


class _Unwrapping:
    """Restores a module's checkpointing function when a plug-in is detached."""

    def __init__(self, module: nn.Module, members: Members) -> None:
        self.module = module
        self.members = members

    def remove(self) -> None:
        """Restore the function, unless another plug-in needs it."""
        again = getattr(self.module, RECOMPUTE, None)
        if isinstance(again, _Recomputing) and self.members in again.members:
            again.members.remove(self.members)
            if not again.members:
                setattr(self.module, RECOMPUTE, again.function)


class _Places:
    """Forward pre-hook of a text model: positions that ignore left padding."""

    def __init__(self, taker: MaskTaker) -> None:
        self.taker = taker

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        mask = self.taker.pick(args, kwargs)
        placed = len(args) > self.taker.position + 1 or kwargs.get("position_ids") is not None
        if placed or not isinstance(mask, Tensor) or mask.ndim != 2 or kwargs.get("past_key_values") is not None:
            return None
        return args, {**kwargs, "position_ids": count_places(mask)}


def count_places(mask: Tensor) -> Tensor:
    """Return positions of tokens, B, N, counted from the first one that is not padding."""
    place = torch.arange(mask.shape[1], device=mask.device)
    return (place - mask.int().argmax(1, keepdim=True)).clamp_min(0)


def read_mask(mask: Any, *, padding_is_true: bool = False) -> Tensor | None:
    """Convert an attention mask of any usual form to B, N, True for tokens other than padding.

    Args:
        mask: None; 0 and 1 or booleans of B, N or B, N, N; or an expanded mask, B, 1, N, N or B, 1, 1, N, of booleans
            or large negative numbers.
        padding_is_true: booleans mark padding, as in torch.nn.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 3, 4):
        shape = f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise TypeError(f"the attention mask is {shape}; it must be a tensor of shape batch, tokens")
    # Tokens other than padding attend to themselves: use the diagonal.
    additive = mask.is_floating_point() and (mask.ndim == 4 or padding_is_true)
    if mask.ndim == 4:
        mask = mask[:, 0, 0] if mask.shape[2] == 1 else mask[:, 0].diagonal(dim1=1, dim2=2)
    elif mask.ndim == 3:
        mask = mask.diagonal(dim1=1, dim2=2)
    if additive:
        return mask > -1
    return ~mask.bool() if padding_is_true else mask.bool()
