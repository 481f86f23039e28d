"""Listen to one forward pass for attention, fused or not, without changing a bit of what the model returns."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..kernels import removed
from ..layers.nominate import Nominator
from ..layers.numerics import full_precision
from ..layers.slots import SlotMixer
from ..layers.token_embed import DenseNetEmbed
from ..plugins.tokens import attends_channels, count_heads, is_attentive
from .grids import Layers, MapShape, split_axes
from .maps import AttentionMap, measure

SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)
PRODUCTS = (torch.matmul, torch.bmm, torch.baddbmm, torch.einsum, Tensor.matmul, Tensor.__matmul__, Tensor.bmm)
WHOLE = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)  # whose fast path bears no hook
NO_ATTENTION = {SlotMixer: "the clustering of a map into slots", Nominator: "the shares of a nomination"}


@dataclass(frozen=True)
class Softmax:
    """A softmax that is not attention among tokens."""

    name: str  # of the module that called it
    shape: tuple[int, ...]  # of its result
    what: str  # what it is instead


@dataclass
class Captured:
    """What was heard in one forward pass."""

    output: Any = None  # what the model returned
    attention: list[AttentionMap] = field(default_factory=list)  # in the order they were computed
    other: list[Softmax] = field(default_factory=list)  # softmaxes that are not attention, and what they are
    # modules that are attention by their name and computed no softmax of queries with keys
    unheard: list[str] = field(default_factory=list)


def capture(model: nn.Module, *inputs: Any, keep: int | None = None, **named: Any) -> Captured:
    """Run a model once and measure all attention in it; the output is bit-identical to that of a plain call.

    Probabilities of fused attention are computed beside it, in float32, from its queries, keys and mask, without
    dropout. A compiled model is run as it was before it was compiled.

    Args:
        model: any module; in the mode, and with gradients or without, as it is.
        inputs: of its forward.
        keep: the place in the batch of an image whose whole maps are to be kept; None keeps numbers only.
        named: of its forward.
    """
    captured = Captured()
    listener = _Listener(captured, Layers.of(model, (*inputs, *named.values())), keep=keep)
    with removed(model), listener.named_modules(model), _uncompiled(), listener:
        captured.output = model(*inputs, **named)
    captured.unheard = listener.unheard()
    return captured


def _uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules as they were; where the compiler was never imported, nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Listener(TorchFunctionMode):
    """Sees every call of a function of torch, knows which module it is in, and lets it go on unchanged."""

    def __init__(self, captured: Captured, layers: Layers, *, keep: int | None) -> None:
        super().__init__()
        self.captured, self.layers, self.keep = captured, layers, keep
        self.running: list[tuple[str, nn.Module]] = []
        self.products: list[set[tuple[int, int]]] = []  # last two sides of the products made so far in each
        self.ran: dict[str, nn.Module] = {}
        self.heard: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function; what is computed in here is not heard again."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.hear_fused(*args, **kwargs)
        elif func in SOFTMAX:
            self.hear_softmax(result, *args, **kwargs)
        elif func in PRODUCTS and isinstance(result, Tensor) and result.ndim >= 3 and self.products:
            self.products[-1].add((result.shape[-2], result.shape[-1]))
        return result

    def hear_fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,  # noqa: ARG002
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Take note of a call of fused attention, whose arguments these are."""
        factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
        if enable_gqa and query.shape[-3] != key.shape[-3]:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        shape = (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
        mask = _bias(attn_mask, is_causal, query.shape[-2], key.shape[-2], query.device)

        def rows(begin: int, end: int) -> Tensor:
            with full_precision(query):
                logits = (query[..., begin:end, :].float() * factor) @ key.float().mT
            if mask is not None:
                logits = logits + (mask if mask.shape[-2] == 1 else mask[..., begin:end, :])
            return logits.softmax(-1).expand(*shape[:-2], -1, -1)  # a row that may see nothing is NaN

        self.note(tuple(shape), rows, fused=True, scale=factor)

    def hear_softmax(self, result: Tensor, x: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        """Take note of a softmax, if it is over the keys of attention."""
        if dim not in (-1, x.ndim - 1) or x.ndim < 3:
            return
        owner = self.owner()
        made = self.products[owner] if self.products else set()
        known = self.running and isinstance(self.running[owner][1], tuple(NO_ATTENTION))
        if not known and (x.shape[-2], x.shape[-1]) not in made:
            self.other(result.shape, "a softmax of something else than a product of two tensors")
            return
        weights = result.detach()
        self.note(tuple(result.shape), lambda begin, end: weights[..., begin:end, :].float(), fused=False)

    def note(
        self,
        shape: tuple[int, ...],
        rows: Callable[[int, int], Tensor],
        *,
        fused: bool,
        scale: float | None = None,
    ) -> None:
        """Measure a map, given by a function that computes some of its rows, if it is attention among tokens."""
        name, module = self.running[self.owner()] if self.running else ("", nn.Identity())
        if reason := self.refuse(module, shape):
            self.other(shape, reason)
            return
        axes = split_axes(shape, batch=self.layers.batch, heads=count_heads(module))
        if axes is None:
            self.other(shape, f"a map whose axes are not understood (batch {self.layers.batch})")
            return
        slots = any(isinstance(outer, SlotMixer) for _, outer in self.running)
        grid = self.layers.locate(name, module, MapShape(axes.windows, shape[-2], shape[-1]), slots=slots)
        with torch.no_grad():
            numbers = measure(rows, axes, grid=grid, keep=self.keep)
        heard = self.captured.attention
        calls = sum(other.name == name for other in heard)
        label = f"{name or 'model'}#{calls + 1}" if calls else name or "model"
        heard.append(AttentionMap(name, label, len(heard), grid, fused, scale, **numbers))
        self.heard.update(outer for outer, _ in self.running)

    def owner(self) -> int:
        """Return the place of the module that a softmax belongs to: the one around a mere softmax module."""
        alone = len(self.running) > 1 and isinstance(self.running[-1][1], nn.Softmax)
        return -2 if alone else -1

    def refuse(self, module: nn.Module, shape: tuple[int, ...]) -> str | None:
        """Say why a map is not attention among tokens; None if it is."""
        for kind, what in NO_ATTENTION.items():
            if isinstance(module, kind):
                return what
        if attends_channels(module):
            return "attention among channels, not among tokens"
        tokens, width = self.layers.entered.get(id(module), (0, 0))
        heads = math.prod(shape[1:-2]) if len(shape) > 3 else 1
        if shape[-1] == shape[-2] != tokens and shape[-1] * heads == width:
            return "attention among channels, not among tokens"
        return None

    def other(self, shape: Sequence[int], what: str) -> None:
        """Take note of a softmax that is not attention."""
        self.captured.other.append(Softmax(self.running[self.owner()][0] if self.running else "", tuple(shape), what))

    def enter(self, name: str, module: nn.Module, args: Sequence[Any] = ()) -> None:
        """Take note that a module begins."""
        self.running.append((name, module))
        self.products.append(set())
        self.ran[name] = module
        first = next((x for x in args if isinstance(x, Tensor)), None)
        if first is not None and not first.is_nested and first.ndim == 3:
            self.layers.entered[id(module)] = (first.shape[1], first.shape[2])

    def leave(self) -> None:
        """Take note that a module ends."""
        self.running.pop()
        self.products.pop()

    @contextmanager
    def named_modules(self, model: nn.Module) -> Iterator[None]:
        """Know which module of a model is running."""
        with ExitStack() as stack:
            inside = _listen_to_multihead(model, self, stack)
            dense = [name for name, module in model.named_modules() if isinstance(module, DenseNetEmbed)]
            for name, module in model.named_modules():
                # Heard, what lies in a dense embedding would go another way and round anew.
                within = any(name.startswith(f"{outer}.") for outer in dense)
                if name not in inside and not within and not isinstance(module, torch.jit.ScriptModule):
                    before = module.register_forward_pre_hook(partial(self.enter, name))
                    after = module.register_forward_hook(lambda *_: self.leave(), always_call=True)
                    stack.callback(before.remove)
                    stack.callback(after.remove)
            yield

    def unheard(self) -> list[str]:
        """Return the outermost modules that are attention by name and of which no map was heard."""
        found: list[str] = []
        named = {other.name for other in self.captured.other}
        for name, module in self.ran.items():
            silent = name not in self.heard and not any(t == name or t.startswith(f"{name}.") for t in named)
            if name and silent and is_attentive(module) and not any(name.startswith(f"{outer}.") for outer in found):
                found.append(name)
        return found


def _bias(mask: Tensor | None, causal: bool, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return what fused attention adds to its logits, in float32."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)
    if causal:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
        future = torch.zeros(queries, keys, device=device).masked_fill(~seen, -torch.inf)
        mask = future if mask is None else mask.float() + future
    return None if mask is None else mask.detach().float()


def _listen_to_multihead(model: nn.Module, listener: _Listener, stack: ExitStack) -> set[str]:
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
        module.forward = partial(_forward, module, module.forward, name, listener)  # type: ignore[method-assign]
        stack.callback(module.__dict__.pop, "forward")
    return inside


def _forward(
    module: nn.Module, original: Callable[..., Any], name: str, listener: _Listener, *args: Any, **kwargs: Any
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
    listener: _Listener,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,  # noqa: ARG001
) -> None:
    attention = layer.self_attn
    listener.enter(f"{name}.self_attn", attention)
    if not src.is_nested:  # padded texts packed into one tensor keep no map that could be asked for
        x = layer.norm1(src) if layer.norm_first else src
        plain = partial(type(attention).forward, attention)
        _note(attention, listener, plain, x, x, x, attn_mask=src_mask, key_padding_mask=src_key_padding_mask)
    attention.__dict__.pop("_heard", None)
    listener.leave()


def _note(module: nn.MultiheadAttention, listener: _Listener, original: Any, *args: Any, **kwargs: Any) -> None:
    module.__dict__["_heard"] = True
    if module.training:
        return
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")
    given = {**dict(zip(names, args, strict=False)), **kwargs, "need_weights": True, "average_attn_weights": False}
    with torch.no_grad():
        weights = original(**given)[1]
    weights = weights if weights.ndim == 4 else weights[None]
    listener.note(tuple(weights.shape), lambda begin, end: weights[..., begin:end, :].float(), fused=True)
