import pytest
import torch

from saccade.layers.product import matmul, unpadded


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


@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 196, 12, 64)])
def test_product_that_the_compiler_takes_whole_has_the_gradients_of_the_plain_one(shape):
    batch, n, k, m = shape
    a = torch.randn(batch, n, k, dtype=torch.float64, requires_grad=True)
    b = torch.randn(batch, m, k, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(batch, n, m, dtype=torch.float64)
    product = unpadded(a, b.mT)
    torch.testing.assert_close(product, a @ b.mT)
    torch.testing.assert_close(torch.autograd.grad(product, (a, b), grad), torch.autograd.grad(a @ b.mT, (a, b), grad))
    torch.library.opcheck(torch.ops.saccade.unpadded_product, (a.detach(), b.detach().mT))


def test_product_that_the_compiler_takes_whole_is_one_operator_in_its_graph():
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compile(lambda a, b: unpadded(a, b), backend=backend)(torch.randn(1, 5, 3), torch.randn(1, 3, 2))
    assert any("unpadded_product" in target for target in seen), seen
