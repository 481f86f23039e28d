import pytest
import torch

from saccade.kernels.modules.depthwise import FusedDepthwiseConv
from saccade.kernels.modules.glmix import FusedConvMlp
from saccade.kernels.ops import depthwise
from saccade.kernels.ops.depthwise import Turned
from saccade.layers.depthwise import DepthwiseConv
from saccade.layers.glmix import ConvMlp, LocalConv
from support.kernels import Somewhere, by_references, swap, takes_every_call


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("size", "shape"), [(3, (2, 5, 7, 4)), (5, (3, 4, 4, 6)), (1, (1, 3, 3, 2)), (5, (2, 1, 2, 3))]
)
def test_turned_gradients_equal_the_plain_ones(size, shape, bias):
    torch.manual_seed(0)
    layer = DepthwiseConv(shape[-1], size).double()
    layer.bias = layer.bias if bias else None
    x, slope = torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.randn(shape, dtype=torch.float64)
    wrt = [x, *layer.parameters()]
    got, want = Turned.apply(x, layer.weight, layer.bias), layer(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, wrt, slope), torch.autograd.grad(want, wrt, slope))


@pytest.mark.parametrize("side", [1, 3, 4, 5, 7, 8, 12, 14, 15, 16, 28, 33, 56, 57, 64, 96])
def test_every_map_has_tiles(side):
    for size in depthwise.SIZES:
        tiles = depthwise.tiles_of(side, side, size)
        powers = (tiles.groups, tiles.channels, tiles.warps)
        assert all(one >= 1 and one & (one - 1) == 0 for one in powers)
        assert 32 * tiles.warps <= tiles.groups * tiles.channels  # no thread holds nothing
        assert tiles.rows - min(side, 8) <= 3 or side % tiles.rows == 0


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_around_the_kernel_equal_the_plain_ones(monkeypatch, size, gelu, bias):
    by_references(monkeypatch)
    torch.manual_seed(0)
    x = torch.randn(2, 20, 8, requires_grad=True)
    layer = FusedDepthwiseConv(8, size)
    layer.bias = layer.bias if bias else None
    out = layer.joined(x, (5, 4), residual=True, gelu=gelu)
    plain = DepthwiseConv.forward(layer, x.unflatten(1, (5, 4))).flatten(1, 2) + x
    plain = torch.nn.functional.gelu(plain) if gelu else plain
    torch.testing.assert_close(out, plain)
    weight = torch.randn_like(out)
    got, want = (torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()]) for y in (out, plain))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("listened", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "local", "alone"])
def test_layers_around_the_kernel_have_the_plain_gradients(monkeypatch, kind, listened, frozen):
    torch.manual_seed(0)
    layers = {
        "mlp": lambda: ConvMlp(6, 8, conv=True),
        "local": lambda: LocalConv(6, 5),
        "alone": lambda: torch.nn.Sequential(torch.nn.Linear(6, 6), DepthwiseConv(6, 3)),
    }[kind]()
    first = layers.fc1 if kind == "mlp" else layers[0]
    first.bias.requires_grad_(not frozen)
    torch.nn.init.normal_(first.bias)
    x = torch.randn(2, 5, 4, 6, requires_grad=True)
    wanted = [x, *(parameter for parameter in layers.parameters() if parameter.requires_grad)]
    run = (lambda: layers(x.flatten(1, 2), (5, 4)).unflatten(1, (5, 4))) if kind == "mlp" else lambda: layers(x)
    out = run()
    want = torch.autograd.grad(out.square().sum(), wanted)
    called = by_references(monkeypatch)
    takes_every_call(monkeypatch)
    swap(layers, "depthwise")
    heard = []
    if listened:
        first.register_forward_hook(lambda *_: heard.append(True))
    joined = run()
    assert bool(heard) == listened
    torch.testing.assert_close(joined, out)
    got = torch.autograd.grad(joined.square().sum(), wanted)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert called["convolve"] == 2


def test_a_feed_forward_part_without_a_convolution_is_refused():
    assert FusedConvMlp.refuses(ConvMlp(4, 4, conv=False)) == "it has no convolution"


def test_the_kernel_serves_compiled_half_precision(monkeypatch):
    x = torch.randn(1, 4, 8, dtype=torch.bfloat16).as_subclass(Somewhere)
    monkeypatch.setattr(depthwise, "INSTALLED", True)
    assert not depthwise.serves(x, 3)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert depthwise.serves(x, 3)
    assert not depthwise.serves(x, 7)
    assert not depthwise.serves(x.float(), 3)
