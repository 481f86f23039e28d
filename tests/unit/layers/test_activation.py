import torch

from saccade.layers.activation import Gelu


def test_value_and_gradient_equal_those_of_the_plain_function():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    got, want = Gelu()(x), torch.nn.functional.gelu(x)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(x)
    (a,), (b,) = (torch.autograd.grad((y * weight).sum(), x) for y in (got, want))
    torch.testing.assert_close(a, b)


def test_gradient_equals_finite_differences():
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Gelu(), (x,))
