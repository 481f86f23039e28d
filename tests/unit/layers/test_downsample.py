"""Patches as rows of a product, the form they have compiled for a GPU, against the convolution."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers import downsample
from saccade.layers.downsample import (
    Normed,
    PatchConv,
    overlapping_downsample,
    overlapping_stem,
    patch_downsample,
    unbiased,
)
from saccade.models.nommer import Stem


class Somewhere(Tensor):
    """One that pretends to lie on a GPU."""

    is_cuda = True


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Have every patch convolution take rows; return the shapes of what went that way."""
    seen: list[torch.Size] = []
    monkeypatch.setattr(PatchConv, "takes_rows", lambda _, x: seen.append(x.shape) or True)
    return seen


def compare(layer: nn.Module, conv: nn.Conv2d, x: Tensor, got: Tensor, want: Tensor) -> None:
    """Compare answers and gradients towards the input and all parameters."""
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    slope, wrt = torch.randn_like(want), [x, *layer.parameters()]
    assert any(p is conv.weight for p in wrt)
    for a, b in zip(*(torch.autograd.grad(y, wrt, slope) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("dim", "patch", "shape"),
    [
        (2, 4, (3, 3, 32, 24)),  # many positions: the gradient of the weight image by image
        (8, 2, (2, 5, 6, 8)),  # few
        (6, 2, (2, 4, 7, 9)),  # a rest that is not read
        (6, 4, (2, 3, 3, 9)),  # less than one patch
        (2, 1, (2, 3, 5, 4)),
    ],
)
def test_patches_as_rows_equal_the_convolution(
    dim: int, patch: int, shape: tuple[int, ...], layout: torch.memory_format, bias: bool, by_rows: list[torch.Size]
) -> None:
    torch.manual_seed(0)
    conv = PatchConv(shape[1], dim, patch=patch, bias=bias).double().to(memory_format=layout)
    x = torch.randn(shape, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    got = conv(x)
    assert by_rows
    missing = [max(0, patch - side) for side in shape[2:]]
    want = F.conv2d(F.pad(x, (0, missing[1], 0, missing[0])), conv.weight, conv.bias, stride=patch)
    assert got.is_contiguous(memory_format=torch.channels_last)
    compare(conv, conv, x, got, want)
    with torch.no_grad():
        torch.testing.assert_close(conv(x), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_compiled_patches_equal_the_convolution(training: bool, by_rows: list[torch.Size]) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    for layer, shape in ((Stem(3, 4), (2, 3, 22, 30)), (patch_downsample(3, 4), (2, 3, 22, 30))):
        layer = layer.double().train(training)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        got = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
        count = len(by_rows)
        layer.conv.takes_rows = lambda _: False  # the instance's own, behind the fixture's
        want = layer(x)
        assert len(by_rows) == count
        compare(layer, layer.conv, x, got, want)
        del layer.conv.takes_rows


def test_the_convolution_is_left_alone_where_nothing_is_compiled() -> None:
    conv = PatchConv(3, 4, patch=2)
    x = torch.randn(2, 3, 8, 8)
    assert not conv.takes_rows(x)
    assert torch.equal(conv(x), F.conv2d(x, conv.weight, conv.bias, stride=2))


@pytest.mark.parametrize("made", [overlapping_stem, overlapping_downsample])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_bias_before_a_norm_reaches_its_running_mean_alone(made: Any, frozen: bool, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    plain = made(6, 8).double()
    for name, parameter in plain.named_parameters():
        nn.init.normal_(parameter)
        parameter.requires_grad_(not (frozen and name.startswith("conv") and name.endswith("bias")))
    quick = copy.deepcopy(plain)
    monkeypatch.setattr(quick, "forward", partial(_on_a_pretended_gpu, quick, monkeypatch))
    for _ in range(3):
        x = torch.randn(4, 6, 16, 12, dtype=torch.float64)
        want, got = plain(x), quick(x)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        slope = torch.randn_like(want)
        want.backward(slope)
        got.backward(slope)
        for one, other in zip(quick.parameters(), plain.parameters(), strict=True):
            assert (one.grad is None) is (other.grad is None) is (not one.requires_grad)
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)
    assert frozen or not any(layer.bias.grad.any() for layer in quick if isinstance(layer, nn.Conv2d))
    for one, other in zip(quick.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def _on_a_pretended_gpu(layers: Normed, monkeypatch: Any, x: Tensor) -> Tensor:
    """Run the layers as where maps lie on a GPU."""
    asked: list[bool] = []

    def answer(conv: nn.Module, norm: nn.Module, x: Tensor) -> bool:
        asked.append(unbiased(conv, norm, x.as_subclass(Somewhere)))
        return asked[-1]

    with monkeypatch.context() as patch:
        patch.setattr(downsample, "unbiased", answer)
        y = Normed.forward(layers, x)
    assert sum(asked) == sum(isinstance(layer, nn.BatchNorm2d) for layer in layers)
    return y


def test_a_bias_before_a_norm_is_added_elsewhere() -> None:
    x = torch.randn(2, 4, 8, 8).as_subclass(Somewhere)
    layers = overlapping_downsample(4, 6)
    assert unbiased(layers.conv, layers.norm, x)
    assert not unbiased(layers.conv, layers.norm, torch.randn(2, 4, 8, 8))
    assert not unbiased(layers.conv, nn.GELU(), x)
    assert not unbiased(layers.conv, nn.SyncBatchNorm(6), x)
    assert not unbiased(nn.Conv2d(4, 6, 3, bias=False), layers.norm, x)
    assert not unbiased(layers.conv, layers.norm.eval(), x)
    layers.norm.train()
    handle = layers.conv.register_forward_hook(lambda *_: None)
    assert not unbiased(layers.conv, layers.norm, x)
    handle.remove()
    assert unbiased(layers.conv, layers.norm, x)


def test_a_bias_is_left_out_of_several_calls_before_their_gradients_and_of_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    plain = overlapping_downsample(3, 4).double()
    quick = copy.deepcopy(plain)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for layers, call in ((plain, plain), (quick, partial(downsample.norm_unbiased, *quick))):
        first, second = call(x), call(2 * x + 1)
        slope = torch.autograd.grad((first**3 + second).sum(), x, create_graph=True)[0]
        found.append(torch.autograd.grad((slope**2).sum(), [x, layers.conv.weight]) + tuple(layers.buffers()))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)


def test_a_bias_is_not_left_out_under_transforms_of_functions() -> None:
    conv, norm = overlapping_downsample(3, 4)
    seen = []

    def asked(x: Tensor) -> Tensor:
        seen.append(unbiased(conv, norm, torch.ones(1).as_subclass(Somewhere)))
        return x

    torch.func.vmap(asked)(torch.ones(2))
    asked(torch.ones(2))
    assert seen == [False, True]
