"""Record the attention of one forward pass, fused or not, with a bit-identical output."""

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
WHOLE = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)  # hooks disable their fast path
NO_ATTENTION = {SlotMixer: "the clustering of a map into slots", Nominator: "the scores of a nomination"}


@dataclass(frozen=True)
class Softmax:
    """A softmax that is not attention between tokens."""

    name: str  # name of the calling module
    shape: tuple[int, ...]  # shape of its result
    what: str  # what it computes instead


@dataclass
class Captured:
    """The recording of one forward pass."""

    output: Any = None  # the model's output
    attention: list[AttentionMap] = field(default_factory=list)  # in order of computation
    other: list[Softmax] = field(default_factory=list)  # softmaxes that are not attention
    # modules named like attention that computed no softmax of queries with keys
    unheard: list[str] = field(default_factory=list)


def capture(model: nn.Module, *inputs: Any, keep: int | None = None, **named: Any) -> Captured:
    """Run a model once and measure its attention; the output is bit-identical to that of a plain call.

    The probabilities of fused attention are recomputed in float32 from its queries, keys and mask, without dropout.
    Compiled models run uncompiled.

    Args:
        model: any module; its mode and gradients are not changed.
        inputs: positional arguments of its forward.
        keep: batch index of an image whose attention maps are kept; None: only measurements.
        named: keyword arguments of its forward.
    """
    captured = Captured()
    listener = _Recorder(captured, Layers.of(model, (*inputs, *named.values())), keep=keep)
    with removed(model), listener.named_modules(model), _uncompiled(), listener:
        captured.output = model(*inputs, **named)
    captured.unheard = listener.find_unrecorded()
    return captured


def _uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules eagerly; if the compiler was never imported, there are none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Recorder(TorchFunctionMode):
    """Observes every call of a torch function, and the module that it is made in, without changing it."""

    def __init__(self, captured: Captured, layers: Layers, *, keep: int | None) -> None:
        super().__init__()
        self.captured, self.layers, self.keep = captured, layers, keep
        self.running: list[tuple[str, nn.Module]] = []
        self.products: list[set[tuple[int, int]]] = []  # shapes N, M of products, by running module
        self.ran: dict[str, nn.Module] = {}
        self.recorded: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call and record a function; calls made while recording are not recorded."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.record_fused(*args, **kwargs)
        elif func in SOFTMAX:
            self.record_softmax(result, *args, **kwargs)
        elif func in PRODUCTS and isinstance(result, Tensor) and result.ndim >= 3 and self.products:
            self.products[-1].add((result.shape[-2], result.shape[-1]))
        return result

    def record_fused(
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
        """Record a call of fused attention with these arguments."""
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
            return logits.softmax(-1).expand(*shape[:-2], -1, -1)  # a fully masked row is NaN

        self.note(tuple(shape), rows, fused=True, scale=factor)

    def record_softmax(self, result: Tensor, x: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        """Record a softmax, if it is over the keys of attention."""
        if dim not in (-1, x.ndim - 1) or x.ndim < 3:
            return
        owner = self.owner()
        made = self.products[owner] if self.products else set()
        known = self.running and isinstance(self.running[owner][1], tuple(NO_ATTENTION))
        if not known and (x.shape[-2], x.shape[-1]) not in made:
            self.other(result.shape, "a softmax of something other than a product of two tensors")
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
        """Measure an attention map between tokens; `rows` computes some of its rows."""
        name, module = self.running[self.owner()] if self.running else ("", nn.Identity())
        if reason := self.refuse(module, shape):
            self.other(shape, reason)
            return
        axes = split_axes(shape, batch=self.layers.batch, heads=count_heads(module))
        if axes is None:
            self.other(shape, f"a map with unknown axes (batch size {self.layers.batch})")
            return
        slots = any(isinstance(outer, SlotMixer) for _, outer in self.running)
        grid = self.layers.locate(name, module, MapShape(axes.windows, shape[-2], shape[-1]), slots=slots)
        with torch.no_grad():
            numbers = measure(rows, axes, grid=grid, keep=self.keep)
        recorded = self.captured.attention
        calls = sum(other.name == name for other in recorded)
        label = f"{name or 'model'}#{calls + 1}" if calls else name or "model"
        recorded.append(AttentionMap(name, label, len(recorded), grid, fused, scale, **numbers))
        self.recorded.update(outer for outer, _ in self.running)

    def owner(self) -> int:
        """Return the module that a softmax belongs to; for `nn.Softmax`, the enclosing one."""
        alone = len(self.running) > 1 and isinstance(self.running[-1][1], nn.Softmax)
        return -2 if alone else -1

    def refuse(self, module: nn.Module, shape: tuple[int, ...]) -> str | None:
        """Return why a map is not attention between tokens; None if it is."""
        for kind, what in NO_ATTENTION.items():
            if isinstance(module, kind):
                return what
        if attends_channels(module):
            return "attention over channels, not over tokens"
        tokens, width = self.layers.entered.get(id(module), (0, 0))
        heads = math.prod(shape[1:-2]) if len(shape) > 3 else 1
        if shape[-1] == shape[-2] != tokens and shape[-1] * heads == width:
            return "attention over channels, not over tokens"
        return None

    def other(self, shape: Sequence[int], what: str) -> None:
        """Record a softmax that is not attention."""
        self.captured.other.append(Softmax(self.running[self.owner()][0] if self.running else "", tuple(shape), what))

    def enter(self, name: str, module: nn.Module, args: Sequence[Any] = ()) -> None:
        """Record the start of a module's forward."""
        self.running.append((name, module))
        self.products.append(set())
        self.ran[name] = module
        first = next((x for x in args if isinstance(x, Tensor)), None)
        if first is not None and not first.is_nested and first.ndim == 3:
            self.layers.entered[id(module)] = (first.shape[1], first.shape[2])

    def leave(self) -> None:
        """Record the end of a module's forward."""
        self.running.pop()
        self.products.pop()

    @contextmanager
    def named_modules(self, model: nn.Module) -> Iterator[None]:
        """Track the running module with hooks."""
        with ExitStack() as stack:
            inside = _listen_to_multihead(model, self, stack)
            dense = [name for name, module in model.named_modules() if isinstance(module, DenseNetEmbed)]
            for name, module in model.named_modules():
                # Hooks inside a dense embedding would change its code path, and the rounding.
                within = any(name.startswith(f"{outer}.") for outer in dense)
                if name not in inside and not within and not isinstance(module, torch.jit.ScriptModule):
                    before = module.register_forward_pre_hook(partial(self.enter, name))
                    after = module.register_forward_hook(lambda *_: self.leave(), always_call=True)
                    stack.callback(before.remove)
                    stack.callback(after.remove)
            yield

    def find_unrecorded(self) -> list[str]:
        """Return the outermost modules named like attention without a recorded map."""
        found: list[str] = []
        named = {other.name for other in self.captured.other}
        for name, module in self.ran.items():
            silent = name not in self.recorded and not any(t == name or t.startswith(f"{name}.") for t in named)
            if name and silent and is_attentive(module) and not any(name.startswith(f"{outer}.") for outer in found):
                found.append(name)
        return found


def _bias(mask: Tensor | None, causal: bool, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return the bias that fused attention adds to its logits, in float32."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)
    if causal:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
        future = torch.zeros(queries, keys, device=device).masked_fill(~seen, -torch.inf)
        mask = future if mask is None else mask.float() + future
    return None if mask is None else mask.detach().float()


def _listen_to_multihead(model: nn.Module, listener: _Recorder, stack: ExitStack) -> set[str]:
    """Replace the forward of PyTorch's attention modules, until the stack closes, by one that also records.

    Hooks and modes disable their fast path, which changes the last bits of the output. So they run without modes, and
    their weights are computed separately, only in evaluation mode: dropout would consume random numbers.

    Returns:
        Names of modules that must not get hooks.
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
    module: nn.Module, original: Callable[..., Any], name: str, listener: _Recorder, *args: Any, **kwargs: Any
) -> Any:
    listener.enter(name, module, args)
    try:
        with torch._C.DisableTorchFunction():
            result = original(*args, **kwargs)
            if isinstance(module, nn.MultiheadAttention):
                _note(module, listener, original, *args, **kwargs)
            elif isinstance(module, nn.TransformerEncoderLayer) and not module.self_attn.__dict__.pop("_heard", False):
                # The fast path does not call the attention module.
                _note_layer(module, name, listener, *args, **kwargs)
            return result
    finally:
        listener.leave()


def _note_layer(
    layer: nn.TransformerEncoderLayer,
    name: str,
    listener: _Recorder,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,  # noqa: ARG001
) -> None:
    attention = layer.self_attn
    listener.enter(f"{name}.self_attn", attention)
    if not src.is_nested:  # nested tensors have no attention map
        x = layer.norm1(src) if layer.norm_first else src
        plain = partial(type(attention).forward, attention)
        _note(attention, listener, plain, x, x, x, attn_mask=src_mask, key_padding_mask=src_key_padding_mask)
    attention.__dict__.pop("_heard", None)
    listener.leave()


def _note(module: nn.MultiheadAttention, listener: _Recorder, original: Any, *args: Any, **kwargs: Any) -> None:
    module.__dict__["_heard"] = True
    if module.training:
        return
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")
    given = {**dict(zip(names, args, strict=False)), **kwargs, "need_weights": True, "average_attn_weights": False}
    with torch.no_grad():
        weights = original(**given)[1]
    weights = weights if weights.ndim == 4 else weights[None]
    listener.note(tuple(weights.shape), lambda begin, end: weights[..., begin:end, :].float(), fused=True)
