"""Listen to one forward pass for attention, fused or not, without changing a bit of what the model returns."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..layers.nominate import Nominator
from ..layers.numerics import full_precision
from ..layers.slots import SlotMixer
from ..layers.token_embed import DenseNetEmbed
from ..plugins.tokens import attends_channels, count_heads, is_attentive
from .grids import Layers, MapShape, split_axes
from .maps import AttentionMap, measure
from .multihead import listen_to_multihead

SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)
PRODUCTS = (torch.matmul, torch.bmm, torch.baddbmm, torch.einsum, Tensor.matmul, Tensor.__matmul__, Tensor.bmm)
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
    with listener.named_modules(model), _uncompiled(), listener:
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
        with torch.no_grad():
            found = measure(
                rows,
                axes,
                grid=self.layers.locate(name, module, MapShape(axes.windows, shape[-2], shape[-1]), slots=slots),
                keep=self.keep,
            )
        calls = sum(other.name == name for other in self.captured.attention)
        self.captured.attention.append(
            found.finish(name=name, call=calls, depth=len(self.captured.attention), fused=fused, scale=scale)
        )
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
            inside = listen_to_multihead(model, self, stack)
            dense = [name for name, module in model.named_modules() if isinstance(module, DenseNetEmbed)]
            for name, module in model.named_modules():
                if name in inside or isinstance(module, torch.jit.ScriptModule):
                    continue
                if any(
                    name.startswith(f"{outer}.") for outer in dense
                ):  # heard, it would go another way and round anew
                    continue
                before = module.register_forward_pre_hook(
                    lambda module, args, name=name: self.enter(name, module, args)
                )
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
