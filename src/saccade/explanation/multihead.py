"""Listen to PyTorch's own attention modules, whose fast path no hook and no mode may come near."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn

WHOLE = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class Listener(Protocol):
    """What hears of maps and of modules that run."""

    def enter(self, name: str, module: nn.Module, args: Any = ()) -> None:
        """Take note that a module begins."""

    def leave(self) -> None:
        """Take note that a module ends."""

    def note(self, shape: tuple[int, ...], rows: Callable[[int, int], Tensor], *, fused: bool) -> None:
        """Take note of a map."""


def listen_to_multihead(model: nn.Module, listener: Listener, stack: ExitStack) -> set[str]:
    """Replace the forward of PyTorch's attention modules, until the stack closes, by one that also takes notes.

    Their fast path is left where a hook or a mode is seen, which changes last bits of the output; so they run with
    modes off, and their weights are asked for beside that, in evaluation mode only: dropout would draw numbers.

    Returns:
        Names of the modules that must not get hooks.
    """
    inside: set[str] = set()
    for name, module in model.named_modules():
        if not isinstance(module, WHOLE):
            continue
        inside.update(f"{name}.{inner}" if inner and name else name or inner for inner, _ in module.named_modules())
        module.forward = functools.partial(_forward, module, module.forward, name, listener)  # type: ignore[method-assign]
        stack.callback(module.__dict__.pop, "forward")
    return inside


def _forward(
    module: nn.Module, original: Callable[..., Any], name: str, listener: Listener, *args: Any, **kwargs: Any
) -> Any:
    listener.enter(name, module, args)
    try:
        with torch._C.DisableTorchFunction():
            result = original(*args, **kwargs)
            if isinstance(module, nn.MultiheadAttention):
                _note(module, listener, original, *args, **kwargs)
            elif isinstance(module, nn.TransformerEncoderLayer) and not module.self_attn.__dict__.pop("_heard", False):
                # It took its fast path, which does not call its attention module.
                _note_layer(module, name, listener, *args, **kwargs)
            return result
    finally:
        listener.leave()


def _note_layer(
    layer: nn.TransformerEncoderLayer,
    name: str,
    listener: Listener,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,  # noqa: ARG001
) -> None:
    attention = layer.self_attn
    listener.enter(f"{name}.self_attn", attention)
    if not src.is_nested:  # padded texts packed into one tensor keep no map that could be asked for
        x = layer.norm1(src) if layer.norm_first else src
        plain = functools.partial(type(attention).forward, attention)
        _note(attention, listener, plain, x, x, x, attn_mask=src_mask, key_padding_mask=src_key_padding_mask)
    attention.__dict__.pop("_heard", None)
    listener.leave()


def _note(module: nn.MultiheadAttention, listener: Listener, original: Any, *args: Any, **kwargs: Any) -> None:
    module.__dict__["_heard"] = True
    if module.training:
        return
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")
    given = {**dict(zip(names, args, strict=False)), **kwargs, "need_weights": True, "average_attn_weights": False}
    with torch.no_grad():
        weights = original(**given)[1]
    weights = weights if weights.ndim == 4 else weights[None]
    listener.note(tuple(weights.shape), lambda begin, end: weights[..., begin:end, :].float(), fused=True)
