import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

from saccade.layers import depthwise, depthwise_triton
from saccade.layers.depthwise import DepthwiseConv
from saccade.layers.depthwise_triton import Tiles

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("size", "shape"), [(3, (2, 5, 7, 4)), (5, (3, 4, 4, 6)), (1, (1, 3, 3, 2)), (5, (2, 1, 2, 3))]
)
def test_gradients_equal_those_of_the_plain_convolution(size, shape):
    torch.manual_seed(0)
    layer = DepthwiseConv(shape[-1], size).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64)
    out = layer(x)
    got = torch.autograd.grad((out * weight).sum(), [x, layer.weight, layer.bias])
    plain = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), layer.weight, layer.bias, padding=size // 2, groups=shape[-1]
    ).permute(0, 2, 3, 1)
    want = torch.autograd.grad((plain * weight).sum(), [x, layer.weight, layer.bias])
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


needs_kernels = pytest.mark.skipif(
    not (depthwise_triton.INSTALLED and (INTERPRETED or DEVICE == "cuda")),
    reason="needs a GPU, or Triton and TRITON_INTERPRET=1",
)
SHAPES = [(5, (2, 3, 9, 24)), (3, (1, 9, 10, 20)), (5, (2, 1, 2, 8)), (3, (1, 1, 1, 3)), (5, (1, 15, 3, 20))]


@needs_kernels
@pytest.mark.parametrize(("size", "shape"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_equal_the_convolution_in_double(size, shape, dtype, monkeypatch):
    monkeypatch.setenv(depthwise_triton.FORCE, "triton")
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for _ in range(2))
    layer = DepthwiseConv(shape[-1], size).to(DEVICE)
    out = layer(x)
    got = torch.autograd.grad((out * weight.detach()).sum(), [x, layer.weight, layer.bias])
    wide, kernel, bias = (p.detach().double().requires_grad_() for p in (x, layer.weight, layer.bias))
    want = torch.nn.functional.conv2d(
        wide.permute(0, 3, 1, 2), kernel, bias, padding=size // 2, groups=shape[-1]
    ).permute(0, 2, 3, 1)
    gradients = torch.autograd.grad((want * weight.detach().double()).sum(), [wide, kernel, bias])
    assert [t.dtype for t in (out, *got)] == [dtype, dtype, torch.float32, torch.float32]
    tolerance = 1e-6 if dtype == torch.float32 else 5e-3
    for ours, theirs in zip((out, *got), (want, *gradients), strict=True):
        assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()


@needs_kernels
def test_kernels_give_the_same_for_any_tiles():
    torch.manual_seed(0)
    x, grad = torch.randn(2, 1, 6, 7, 20, device=DEVICE)
    weight, bias = torch.randn(20, 1, 5, 5, device=DEVICE), torch.randn(20, device=DEVICE)
    want = depthwise.convolve(x, weight, bias)
    for tiles in (Tiles(2, 4, 16, 1), Tiles(4, 8, 32, 2), Tiles(16, 16, 32, 1)):
        torch.testing.assert_close(depthwise_triton.run_convolve(x, weight, bias, tiles), want, rtol=1e-4, atol=1e-4)
        got = depthwise_triton.run_kernel_gradient(x, grad, 5, tiles)
        torch.testing.assert_close(got[0], depthwise.kernel_gradient(x, grad, 5), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got[1], grad.sum((0, 1, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(
    not depthwise_triton.INSTALLED or DEVICE == "cuda" or INTERPRETED, reason="elsewhere they run by themselves"
)
def test_kernels_pass_their_tests_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", __file__, "-k", "kernels"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_operator_knows_shapes_and_gradients_without_running():
    with FakeTensorMode():
        x = torch.empty(2, 7, 9, 24, dtype=torch.bfloat16, requires_grad=True)
        weight, bias = (torch.empty(s, requires_grad=True) for s in ((24, 1, 5, 5), (24,)))
        out = depthwise_triton.depthwise(x, weight, bias, False)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        got = torch.autograd.grad(out.float().sum(), [x, weight, bias])
        assert [g.shape for g in got] == [x.shape, weight.shape, bias.shape]


def test_no_shape_is_taken_that_was_not_measured(monkeypatch):
    monkeypatch.delenv(depthwise_triton.FORCE, raising=False)
    assert depthwise_triton.choose(torch.empty(1, 8, 8, 4), 5) is None
    with FakeTensorMode():
        assert depthwise_triton.choose(torch.empty(1, 8, 8, 4, device="cuda", dtype=torch.bfloat16), 9) is None
