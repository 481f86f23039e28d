"""Operators of SoT's token embedding, each against its reference in double precision."""

import pytest
import torch

from saccade.kernels.ops.max_pool import MaxPool, max_pool_reference
from saccade.kernels.ops.moments import Moments, moments_reference
from saccade.kernels.ops.row_product import RowProduct, row_product_reference


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def same(got, want, inputs) -> None:
    """Compare results, and gradients towards the inputs of weighted sums of all results."""
    pairs = [(got, want)] if isinstance(got, torch.Tensor) else list(zip(got, want, strict=True))
    sums = [torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
        weight = torch.randn_like(b)
        sums = [sums[0] + (a * weight).sum(), sums[1] + (b * weight).sum()]
    for a, b in zip(*(torch.autograd.grad(total, inputs) for total in sums), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_a_product_of_rows_is_a_linear_layer():
    given = draw(12, 5), draw(3, 5)
    same(RowProduct.apply(*given, 4), row_product_reference(*given, 4), given)


def test_a_product_of_rows_gives_a_frozen_weight_no_gradient():
    x, weight = draw(12, 5), draw(3, 5).detach()
    same(RowProduct.apply(x, weight, 2), row_product_reference(x, weight, 2), [x])


def test_moments_are_mean_and_biased_variance():
    x = draw(9, 4)
    same(Moments.apply(x), moments_reference(x), [x])


def test_moments_of_half_precision_are_in_full():
    found = Moments.apply(torch.randn(8, 3).bfloat16().requires_grad_())
    assert [x.dtype for x in found] == [torch.float32] * 2


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 7, 9), (2, 2, 1, 1), (1, 3, 2, 5), (2, 4, 13, 6)])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pooling_is_pytorchs_with_its_gradient(shape, ties):
    x = draw(*shape)
    x = x.detach().round().requires_grad_() if ties else x
    got, want = MaxPool.apply(x), max_pool_reference(x)
    assert torch.equal(got, want)
    same(got, want, [x])
