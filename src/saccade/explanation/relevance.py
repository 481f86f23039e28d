"""Relevance propagated through attention, after Chefer, Gur and Wolf (Transformer Interpretability Beyond Attention
Visualization, 2021).

In a second pass, autograd carries relevance instead of gradients: linear layers share it out by the positive products
of inputs and weights, products and quotients of two tensors in halves, sums and differences in proportion to their
terms; norms, activations and signs pass it on. Each layer's attention is multiplied by its gradient and its
relevance, and the layers are chained.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

UNARY = ("Norm", "Activation", "GELU", "ReLU", "SiLU", "Tanh", "Dropout")  # in the names of modules that pass relevance
EPS = 1e-9
# Names of operations, without underscores.
MATMUL = ("matmul", "rmatmul", "bmm")
SUM, DIFFERENCE = ("add", "radd", "iadd"), ("sub", "isub", "subtract", "rsub")
PRODUCT = ("mul", "rmul", "imul", "multiply", "div", "itruediv", "truediv", "rtruediv", "rdiv", "true_divide", "divide")
PASSING = (
    "neg", "negative", "reciprocal", "sqrt", "rsqrt", "square", "pow", "exp", "tanh", "sigmoid", "relu", "gelu", "silu",
    "layer_norm", "rms_norm",
)  # fmt: skip


class AttentionMaps(TorchFunctionMode):
    """Records attention, B, heads, N, N, with its graph; fused attention is computed in steps.

    Args:
        length: number of tokens.
        relevance: let autograd carry relevance.
    """

    def __init__(self, length: int, *, relevance: bool = False) -> None:
        super().__init__()
        self.length, self.relevance = length, relevance
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace attention, and with relevance the operations that share it out."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attend(*args, **kwargs)
        if name == "softmax":
            return self._softmax(func, args, kwargs)
        if not self.relevance:
            return func(*args, **kwargs)
        plain = name.strip("_")
        if plain == "linear":
            return _Linear.apply(func(*args, **kwargs).detach(), args[0], args[1])
        if plain == "addmm" and not kwargs:  # bias, input, weight
            return _Linear.apply(func(*args).detach(), args[1], args[2].T)
        learnt = [one for one in args[:2] if isinstance(one, Tensor) and one.requires_grad]
        known = plain in PASSING or (plain in (*MATMUL, *SUM, *DIFFERENCE, *PRODUCT) and not kwargs)
        if not known or not learnt or not torch.is_floating_point(learnt[0]):
            return func(*args, **kwargs)
        if name.startswith("__i") or (name.endswith("_") and not name.startswith("__")):  # in place
            before = args[0].clone()
            made = func(args[0].detach().clone(), *args[1:], **kwargs).detach()
            return args[0].copy_(_shared(plain, made, (before, *args[1:])))
        return _shared(plain, func(*args, **kwargs).detach(), args)

    def _softmax(self, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        made = func(*args, **kwargs)
        if self.relevance and args[0].requires_grad:
            made = _Pass.apply(made.detach(), args[0])
        if made.ndim == 4 and made.shape[-2:] == (self.length, self.length) and made.requires_grad:
            self.maps.append(made)
        return made

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute attention from operations that this mode knows."""
        if enable_gqa:
            key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], dim=1) for one in (key, value))
        with self:
            scores = torch.matmul(query, key.transpose(-2, -1)) * (scale or query.shape[-1] ** -0.5)
            if is_causal:
                seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
                scores = scores + torch.zeros_like(scores.detach()).masked_fill(~seen, float("-inf"))
            if attn_mask is not None and attn_mask.dtype is torch.bool:
                attn_mask = torch.zeros_like(scores.detach()).masked_fill(~attn_mask, float("-inf"))
            scores = scores if attn_mask is None else scores + attn_mask
            return torch.matmul(F.softmax(scores, dim=-1), value)


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """Freeze a model's parameters within a context, so that only activations have a graph."""
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learnt:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learnt:
            parameter.requires_grad_(True)


@contextmanager
def passing_on(model: nn.Module) -> Iterator[None]:
    """Let norms and activations of a model pass relevance on within a context."""

    def hook(_module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return _Pass.apply(output.detach(), args[0]) if args[0].requires_grad else output

    names = [(module, type(module).__name__) for module in model.modules()]
    unary = [module for module, name in names if any(part in name for part in UNARY) and not list(module.children())]
    hooks = [module.register_forward_hook(hook) for module in unary]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def chain(gradients: Sequence[Tensor | None], relevances: Sequence[Tensor | None], *, length: int) -> Tensor:
    """Return the product over layers of I + the mean over heads of (gradient x relevance)+, N, N, last layer first."""
    whole = torch.eye(length)
    for gradient, relevance in zip(gradients, relevances, strict=True):
        if gradient is not None and relevance is not None:
            whole = whole + (gradient * relevance).clamp(min=0)[0].mean(0).float().cpu() @ whole
    return whole


def _shared(name: str, made: Tensor, args: Any) -> Tensor:
    """Return what an operation made, as its rule shares relevance out; constants get none."""
    learnt = [one for one in args[:2] if isinstance(one, Tensor) and one.requires_grad]
    if name in MATMUL:
        return _Matmul.apply(made, *args[:2]) if len(learnt) == 2 else _matmul_by(made, args)
    if name in PASSING or len(learnt) == 1:
        return _Pass.apply(made, learnt[0])
    a, b = learnt
    if name in PRODUCT:  # a quotient is a product with the reciprocal
        return _Product.apply(made, a, b)
    if name == "rsub":
        a, b = b, a
    return _Sum.apply(made, a, _Pass.apply(-b.detach(), b) if name in DIFFERENCE else b)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b.abs() > EPS, a / torch.where(b.abs() > EPS, b, 1.0), 0.0)


class _Pass(torch.autograd.Function):
    """Relevance of a result is that of its input."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, given: Tensor) -> Tensor:
        ctx.shape = given.shape
        return made.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[None, Tensor]:
        return None, relevance.sum_to_size(ctx.shape)


class _Linear(torch.autograd.Function):
    """Relevance is shared out by products of inputs and weights of the same sign."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, given: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(given, weight)
        return made.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[None, Tensor, None]:
        given, weight = ctx.saved_tensors
        parts = [(given.clamp(min=0), weight.clamp(min=0)), (given.clamp(max=0), weight.clamp(max=0))]
        share = _divide(relevance, parts[0][0] @ parts[0][1].mT + parts[1][0] @ parts[1][1].mT)
        return None, parts[0][0] * (share @ parts[0][1]) + parts[1][0] * (share @ parts[1][1]), None


class _Matmul(torch.autograd.Function):
    """Each factor gets half of the relevance, by products."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(made, a, b)
        return made.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[None, Tensor, Tensor]:
        made, a, b = ctx.saved_tensors
        share = _divide(relevance, made)
        first, second = a * (share @ b.mT) / 2, b * (a.mT @ share) / 2
        return None, first.sum_to_size(a.shape), second.sum_to_size(b.shape)


class _Sum(torch.autograd.Function):
    """Relevance is shared out in proportion to the terms, and then to their totals."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(made, a, b)
        return made.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[None, Tensor, Tensor]:
        made, a, b = ctx.saved_tensors
        share = _divide(relevance, made)
        first, second = a * share, b * share
        sizes = first.sum().abs(), second.sum().abs()
        whole = relevance.sum()
        first, second = (
            part * _divide(whole * size / (sizes[0] + sizes[1]).clamp(min=EPS), part.sum())
            for part, size in zip((first, second), sizes, strict=True)
        )
        return None, first.sum_to_size(a.shape), second.sum_to_size(b.shape)


class _Product(torch.autograd.Function):
    """Each factor gets half of the relevance."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.shapes = a.shape, b.shape
        return made.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[None, Tensor, Tensor]:
        first, second = ((relevance / 2).sum_to_size(shape) for shape in ctx.shapes)
        return None, first, second


def _matmul_by(made: Tensor, args: Any) -> Tensor:
    """Multiply by a constant: the other factor gets all of the relevance, as by a linear layer."""
    a, b = args[:2]
    if a.requires_grad:
        return _Linear.apply(made, a, b.mT)
    return _Linear.apply(made.mT, b.mT, a).mT
