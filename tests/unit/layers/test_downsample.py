"""Patches as rows of a product, the form they have compiled for a GPU, against the convolution."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers.downsample import PatchConv, patch_downsample
from saccade.models.nommer import Stem


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
