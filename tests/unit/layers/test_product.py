import pytest
import torch

from saccade.layers.product import matmul


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
def test_product_and_gradients_equal_those_of_the_plain_product(transposed):
    torch.manual_seed(0)
    a = torch.randn(2, 3, 4, dtype=torch.float64)
    b = torch.randn(2, 4, 5, dtype=torch.float64)
    a = a.mT.contiguous().mT if transposed in ("left", "both") else a
    b = b.mT.contiguous().mT if transposed in ("right", "both") else b
    a, b = a.requires_grad_(), b.requires_grad_()
    out = matmul(a, b)
    weight = torch.randn_like(out)
    got = torch.autograd.grad((out * weight).sum(), [a, b])
    want = torch.autograd.grad((a @ b * weight).sum(), [a, b])
    torch.testing.assert_close(out, a @ b)
    torch.testing.assert_close(got, want)


def test_a_constant_operand_gets_no_gradient():
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5, requires_grad=True)
    matmul(a, b).sum().backward()
    assert b.grad is not None
    assert a.grad is None
