import torch

from saccade.layers.activation import Gelu, quick_gelu, quick_gradient


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


def test_the_quick_form_is_right_to_a_millionth():
    x = torch.linspace(-12, 12, 20_001, dtype=torch.float64, requires_grad=True)
    want = torch.nn.functional.gelu(x)
    (gradient,) = torch.autograd.grad(want.sum(), x)
    given = x.detach().float().requires_grad_()
    got = quick_gelu(given)
    assert float((got - want).detach().abs().max()) < 1e-6
    assert float((quick_gradient(torch.ones(len(x)), given.detach()) - gradient).abs().max()) < 1e-6
    torch.testing.assert_close(torch.autograd.grad(got.sum(), given)[0].double(), gradient, atol=1e-6, rtol=0)


def test_the_quick_form_keeps_half_precision_and_large_numbers():
    x = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], dtype=torch.float16)
    got = quick_gelu(x)
    assert got.dtype == torch.float16
    assert torch.equal(got, torch.nn.functional.gelu(x.float()).half())
