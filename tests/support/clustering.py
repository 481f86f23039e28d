"""What every way to cluster a map into slots and to dispatch them back has to give."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from support.golden import relative_error

Form = Callable[[Tensor, Tensor, Tensor], Any]


def textbook(slots: Tensor, features: Tensor, scale: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """GLMix eq. 2-4 as written: correspondence, softmax over positions, softmax over slots."""
    logits = scale * F.normalize(slots, dim=-1) @ F.normalize(features, dim=-1).mT  # B, M, N
    clustered = logits.softmax(-1) @ features
    return logits.mT.softmax(-1) @ transform(clustered)


def check_clustering(form: Form, positions: int) -> None:
    """Compare a form with the textbook's, with gradients."""
    generator = torch.Generator().manual_seed(positions)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = [random(2, 9, 12), random(2, positions, 12), torch.tensor(3.0, dtype=torch.float64), random(12, 12)]
    for value in inputs:
        value.requires_grad_()
    slots, features, scale, weight = inputs
    want = textbook(slots, features, scale, lambda s: s @ weight)
    clustered, dispatch = form(slots, features, scale)
    got = dispatch(clustered @ weight)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    with torch.no_grad():
        clustered, dispatch = form(slots, features, scale)
        torch.testing.assert_close(dispatch(clustered @ weight), want, rtol=1e-11, atol=1e-11)
    grad = random(*want.shape)
    for ours, theirs in zip(
        torch.autograd.grad(got, inputs, grad), torch.autograd.grad(want, inputs, grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def check_empty_features(form: Form) -> None:
    """See that features of length zero get finite gradients."""
    slots, features = torch.zeros(1, 4, 8, requires_grad=True), torch.zeros(1, 6, 8, requires_grad=True)
    clustered, dispatch = form(slots, features, torch.tensor(4.0))
    dispatch(clustered).sum().backward()
    assert slots.grad is not None
    assert slots.grad.isfinite().all()
    assert features.grad is not None
    assert features.grad.isfinite().all()


def check_half_precision(form: Form, dtype: torch.dtype, tolerance: float) -> None:
    """Compare half precision with float32 where squares overflow."""
    generator = torch.Generator().manual_seed(0)
    slots, features = (300 * torch.randn(1, n, 32, generator=generator) for n in (16, 144))
    results = []
    for kind in (torch.float32, dtype):
        clustered, dispatch = form(slots.to(kind), features.to(kind), torch.tensor(5.0, dtype=kind))
        results.append(dispatch(clustered))
    assert results[1].dtype == dtype
    assert relative_error(results[1], results[0]) < tolerance


def saved_bytes(function: Callable[[], Any]) -> int:
    """Bytes of distinct storage that autograd keeps for backward."""
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = function()
    del result
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def check_memory(form: Form, dim: int, dtype: torch.dtype) -> None:
    """See that a form keeps no more for backward than the textbook's."""
    slots, features = torch.randn(1, 64, dim, dtype=dtype), torch.randn(1, 784, dim, dtype=dtype, requires_grad=True)
    scale = torch.tensor(4.0, dtype=dtype, requires_grad=True)

    def run() -> Tensor:
        clustered, dispatch = form(slots, features, scale)
        return dispatch(clustered)

    assert saved_bytes(run) <= saved_bytes(lambda: textbook(slots, features, scale, lambda s: s))
