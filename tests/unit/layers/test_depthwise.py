import pytest
import torch

from saccade.layers import depthwise_triton, parts
from saccade.layers.activation import quick_gradient
from saccade.layers.depthwise import DepthwiseConv, Turned, convolve
from saccade.layers.depthwise_triton import Tiles
from saccade.layers.glmix import ConvMlp, LocalConv
from support.interpreter import interpreted, not_interpreted, run_interpreted
from support.kernels import add_up, convolve_map, gradients


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("size", "shape"), [(3, (2, 5, 7, 4)), (5, (3, 4, 4, 6)), (1, (1, 3, 3, 2)), (5, (2, 1, 2, 3))]
)
def test_gradients_equal_those_of_the_plain_convolution(size, shape, bias, turned):
    torch.manual_seed(0)
    layer = DepthwiseConv(shape[-1], size).double()
    layer.bias = layer.bias if bias else None
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64)
    out = Turned.apply(x, layer.weight, layer.bias) if turned else layer(x)
    got = torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()])
    plain = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), layer.weight, layer.bias, padding=size // 2, groups=shape[-1]
    ).permute(0, 2, 3, 1)
    want = torch.autograd.grad((plain * weight).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(got, want)


def test_gradients_equal_finite_differences():
    torch.manual_seed(0)
    layer = DepthwiseConv(3, 3).double()
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_an_even_kernel_is_refused():
    with pytest.raises(ValueError, match="odd"):
        DepthwiseConv(4, 2)


@pytest.mark.slow
@not_interpreted
def test_the_kernel_runs_in_tritons_interpreter():
    assert "7 passed" in run_interpreted(__file__, "test_the_kernel")


@interpreted
@pytest.mark.parametrize(
    ("shape", "size", "tiles", "residual"),
    [
        ((2, 7, 9, 24), 3, None, True),
        ((3, 10, 5, 16), 5, None, False),
        ((2, 8, 8, 32), 3, Tiles(4, 4, 2, 32, 4), True),
        ((1, 3, 2, 8), 5, Tiles(7, 4, 3, 8, 1), True),
        ((1, 4, 6, 40), 3, None, False),
    ],
)
def test_the_kernel_equals_the_plain_convolution(shape, size, tiles, residual):
    torch.manual_seed(0)
    height, width, channels = shape[1:]
    x, weight, bias = torch.randn(shape), torch.randn(channels, 1, size, size), torch.randn(channels)
    grad = torch.randn(shape)
    for one in (x, weight, bias):
        one.requires_grad_()
    total = convolve(x, weight, bias) + (x if residual else 0)
    want = torch.autograd.grad(total, (x, weight, bias), grad)
    flat, cells = (lambda one: one.detach().flatten(1, 2)), depthwise_triton.cells_of(weight.detach(), x.dtype)
    how = (height, width, False, residual, True, True, False, tiles)
    kept, active, nothing = depthwise_triton.run_convolve(lambda kernel: kernel, flat(x), cells, bias.detach(), *how)
    torch.testing.assert_close(kept, flat(total))
    torch.testing.assert_close(active, flat(torch.nn.functional.gelu(total)))
    assert nothing.numel() == 0
    how = (height, width, True, residual, False, True, True, tiles)
    turned, nothing, parts = depthwise_triton.run_convolve(lambda kernel: kernel, flat(grad), cells, None, *how)
    torch.testing.assert_close(turned, flat(want[0]))
    assert nothing.numel() == 0
    torch.testing.assert_close(parts.sum(0), want[0].sum((0, 1, 2)), atol=1e-4, rtol=1e-4)
    given = (flat(grad), flat(x), height, width, size, tiles)
    sums = depthwise_triton.run_gradients(lambda kernel: kernel, *given).sum(0)
    of_weight, of_bias = sums.split([weight.numel(), channels])
    torch.testing.assert_close(of_weight.view(weight.shape), want[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(of_bias, want[2], atol=1e-4, rtol=1e-4)


@interpreted
@pytest.mark.parametrize("shape", [(2, 35, 64), (3, 1000)])
def test_the_kernels_of_gelu_and_its_gradient_equal_the_plain_ones(shape):
    torch.manual_seed(0)
    x, grad = 3 * torch.randn(shape), torch.randn(shape)
    active = depthwise_triton.run_gelu(lambda kernel: kernel, x)
    got = depthwise_triton.run_gelu_gradient(lambda kernel: kernel, grad, x)
    x.requires_grad_()
    want = torch.nn.functional.gelu(x)
    torch.testing.assert_close(active, want.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got, torch.autograd.grad(want, x, grad)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", [1, 3, 4, 5, 7, 8, 12, 14, 15, 16, 28, 33, 56, 57, 64, 96])
def test_every_map_has_tiles(side):
    for size in depthwise_triton.SIZES:
        tiles = depthwise_triton.tiles_of(side, side, size)
        powers = (tiles.groups, tiles.channels, tiles.warps)
        assert all(one >= 1 and one & (one - 1) == 0 for one in powers)
        assert 32 * tiles.warps <= tiles.groups * tiles.channels  # no thread holds nothing
        assert tiles.rows - min(side, 8) <= 3 or side % tiles.rows == 0


@pytest.fixture
def plain_kernels(monkeypatch):
    """The kernels' results by plain operators."""
    monkeypatch.setattr(depthwise_triton, "convolve", convolve_map)
    monkeypatch.setattr(depthwise_triton, "gradients", gradients)
    monkeypatch.setattr(depthwise_triton, "gelu_gradient", quick_gradient)
    monkeypatch.setattr(parts, "add_up", add_up)


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_around_the_kernel_equal_the_plain_ones(size, gelu, bias):
    torch.manual_seed(0)
    x = torch.randn(2, 20, 8, requires_grad=True)
    layer = DepthwiseConv(8, size)
    layer.bias = layer.bias if bias else None
    out = layer.joined(x, (5, 4), gelu=gelu)
    plain = layer(x.unflatten(1, (5, 4))).flatten(1, 2) + x
    plain = torch.nn.functional.gelu(plain) if gelu else plain
    torch.testing.assert_close(out, plain)
    weight = torch.randn_like(out)
    got, want = (torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()]) for y in (out, plain))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("listened", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "local"])
def test_a_bias_before_the_kernel_gets_its_gradient_there(monkeypatch, kind, listened, frozen):
    torch.manual_seed(0)
    layers = ConvMlp(6, 8, conv=True) if kind == "mlp" else LocalConv(6, 5)
    first = layers.fc1 if kind == "mlp" else layers.pointwise1
    first.bias.requires_grad_(not frozen)
    torch.nn.init.normal_(first.bias)
    x = torch.randn(2, 5, 4, 6, requires_grad=True)
    wanted = [x, *(parameter for parameter in layers.parameters() if parameter.requires_grad)]
    run = (lambda: layers(x.flatten(1, 2), (5, 4)).unflatten(1, (5, 4))) if kind == "mlp" else lambda: layers(x)
    out = run()
    want = torch.autograd.grad(out.square().sum(), wanted)
    monkeypatch.setattr(DepthwiseConv, "joins", lambda *_: True)
    heard = []
    if listened:
        first.register_forward_hook(lambda *_: heard.append(True))
    joined = run()
    assert bool(heard) == listened
    torch.testing.assert_close(joined, out)
    got = torch.autograd.grad(joined.square().sum(), wanted)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
