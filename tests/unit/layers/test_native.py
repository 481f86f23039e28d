"""What the user's compiler compiles: where it serves, where it does not, and that it computes the same."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import saccade
from saccade.layers import (
    activation_native,
    attention_native,
    dense_moments_native,
    dense_native,
    dense_stem_native,
    native,
    product,
    product_native,
)
from saccade.layers.activation import Gelu
from saccade.layers.attention import SelfAttention
from saccade.layers.dense_stem import Stem
from saccade.layers.downsample import PatchConv
from saccade.layers.linear import Linear

COMPILER = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
pytestmark = pytest.mark.skipif(not COMPILER, reason="needs a C compiler")


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(native, "library", lambda *_: None)


def test_it_takes_plain_tensors_of_a_cpu_alone():
    x = torch.randn(8)
    assert native.fits(x, nn.Parameter(x))
    assert not native.fits(x.double())
    assert not native.fits(x, x.to("meta"))
    assert not native.fits(torch._neg_view(x))

    class Other(torch.Tensor):
        pass

    assert not native.fits(x.as_subclass(Other))
    with FlopCounterMode(display=False):
        assert not native.fits(x)
    with forward_ad.dual_level():
        assert not native.fits(x)
    seen = []
    torch.vmap(lambda row: (seen.append(native.fits(row)), row)[1])(torch.randn(2, 3))
    torch.compile(lambda row: (seen.append(native.fits(row)), row + 1)[1], backend="eager")(x)
    torch.jit.trace(lambda row: (seen.append(native.fits(row)), row + 1)[1], x, check_trace=False)
    assert not any(seen)
    assert len(seen) >= 3


def test_who_listens_to_functions_hears_of_attention_and_changes_nothing():
    class Listener(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    heard, layer, x = [], SelfAttention(32, num_heads=2), torch.randn(2, 40, 32)
    plain = layer(x)
    with Listener(), torch.device("cpu"):
        assert torch.equal(layer(x), plain)
    assert attention_native.attend in heard


def test_attention_that_is_to_be_written_out_is():
    layer, heard = SelfAttention(32, num_heads=2), []
    layer.attn_drop.register_forward_hook(lambda module, args, weights: heard.append(weights.shape))
    x = torch.randn(2, 40, 32)
    expected = layer(x)
    layer.fused_attn = False
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)
    assert heard == [(2, 2, 40, 40)]


def test_a_compiler_that_fails_leaves_the_work_to_pytorch(tmp_path):
    code = (
        "import torch, timm, saccade; from saccade.layers import attention_native, activation_native as a; "
        "m = timm.create_model('sot_7', img_size=32, num_classes=3); m(torch.randn(2, 3, 32, 32)).sum().backward(); "
        "assert not attention_native.serves(torch.randn(2, 100, 48)) and not a.serves(torch.randn(9999))"
    )
    environment = {"PATH": "/usr/bin:/bin", "CC": "false", "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(saccade.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(
    "name",
    ["sot_7", "glnet_nano", *(pytest.param(name, marks=pytest.mark.slow) for name in ("t2t_vit_7", "nommer_tiny"))],
)
def test_models_answer_and_learn_the_same_without_it(name, request):
    torch.manual_seed(0)
    size = {"img_size": 64} if name != "glnet_nano" else {}
    model = timm.create_model(name, num_classes=5, **size).train()
    images = torch.randn(2, 3, 64, 64)

    def learn():
        torch.manual_seed(1)
        model.zero_grad()
        answers = model(images)
        answers.square().sum().backward()
        found = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        return answers.detach(), found

    answers, gradients = learn()
    request.getfixturevalue("no_compiler")
    plain, others = learn()
    torch.testing.assert_close(answers, plain, rtol=1e-4, atol=1e-5)
    least = 1e-3 * max(other.norm() for other in others.values())  # biases before a batch norm have none but rounding
    for key, other in others.items():
        error = (gradients[key] - other).norm() / other.norm().clamp_min(least)
        assert error < 2e-3, (key, error)


@pytest.mark.parametrize("do", ["attend", "gelu", "dense", "multiply", "stem", "moments"])
def test_a_result_does_not_depend_on_the_number_of_threads(do):
    torch.manual_seed(0)
    qkv, hidden, maps = torch.randn(3, 70, 96), torch.randn(70_001), channels_last(3, 32, 22, 17)
    first, kernels = layers(32)
    rows, matrix = torch.randn(1200, 400), torch.randn(400, 100)
    images, weight = torch.randn(3, 3, 70, 80), torch.randn(16, 3, 3, 3)

    def run():
        if do == "multiply":
            return (product_native.multiply(rows, matrix),)
        if do == "stem":
            return (dense_stem_native.kernel_gradient(images, weight, images.new_ones(3, 16, 35, 40).cumsum(3)),)
        if do == "moments":
            return dense_moments_native.moments(rows)
        if do == "gelu":
            return activation_native.gelu(hidden), *activation_native.gelu_and_slope(hidden)
        if do == "attend":
            x = qkv.clone().requires_grad_()
            out = attention_native.attend(x, 2)
            return out.detach(), *torch.autograd.grad(out.square().sum(), x)
        whole = dense_native.dense_block(maps, first, kernels)
        back, of_kernels = dense_native.dense_block_back(whole, seen_as_rows(whole).sin(), first, kernels)
        return whole, back, *of_kernels

    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5, 2):
            torch.set_num_threads(threads)
            found.append(run())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 3, 8), (5, 2, 20), (50, 3, 32), (65, 2, 60), (197, 1, 7)])
def test_attention_is_that_of_pytorch(images, tokens, heads, width):
    torch.manual_seed(tokens)
    qkv = (2 * torch.randn(images, tokens, 3 * heads * width)).requires_grad_()
    grad = torch.randn(images, tokens, heads * width)
    out = attention_native.attend(qkv, heads)
    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    want = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=1e-5)
    (of_qkv,) = torch.autograd.grad(out, qkv, grad)
    (wanted,) = torch.autograd.grad(want, exact, grad.double())
    torch.testing.assert_close(of_qkv.double(), wanted, rtol=0, atol=6e-5)
    with torch.no_grad():
        assert torch.equal(attention_native.attend(qkv, heads), out)


def test_attention_keeps_far_logits_and_tells_of_no_numbers():
    qkv = torch.zeros(1, 40, 3 * 16)
    qkv[0, 0, :32] = 100.0  # the first token's logits are far above the others'
    qkv[0, :, 32:] = torch.arange(40.0)[:, None]
    out = attention_native.attend(qkv, 1)
    torch.testing.assert_close(out[0, 0], torch.zeros(16))
    torch.testing.assert_close(out[0, 1], torch.full((16,), 19.5))
    qkv[0, 3, 0] = float("nan")
    out = attention_native.attend(qkv, 1)
    assert out[0, 3].isnan().all()
    assert not out[0, 4].isnan().any()


def test_attention_of_noncontiguous_tokens_and_many_of_them():
    wide = torch.randn(2, 30, 200)
    assert torch.equal(attention_native.attend(wide[:, :, :96], 2), attention_native.attend(wide[:, :, :96].clone(), 2))
    assert not attention_native.serves(torch.empty(1, attention_native.MOST_TOKENS + 1, 64))
    assert not attention_native.serves(torch.empty(0, 50, 64))
    with torch.autocast("cpu", torch.bfloat16):
        assert not attention_native.serves(torch.empty(2, 50, 64))


@pytest.mark.parametrize("count", [1, 7, 8192, 8193, 30_001])
def test_gelu_and_its_slope_are_those_of_the_normal_distribution(count):
    x = torch.linspace(-16, 16, count)
    exact = x.double().requires_grad_()
    want = F.gelu(exact)
    (slope,) = torch.autograd.grad(want.sum(), exact)
    out, found = activation_native.gelu_and_slope(x)
    torch.testing.assert_close(out.double(), want, rtol=3e-7, atol=1e-6)
    torch.testing.assert_close(found.double(), slope, rtol=0, atol=5e-7)
    grad = torch.full_like(x, 3.0)
    assert torch.equal(activation_native.gelu_and_back(x, grad), out)
    torch.testing.assert_close(grad, 3 * found)
    alone = activation_native.gelu(x)
    assert ((alone - want).abs() <= 4e-7 * exact.abs()).all()
    assert activation_native.gelu(x, over=True) is x
    assert torch.equal(x, alone)


def test_gelu_at_the_ends():
    x = torch.tensor([float("inf"), 1e30, 50.0, 0.0, -50.0, -1e30, float("nan"), -float("nan"), -float("inf")])
    out, slope = activation_native.gelu_and_slope(x)
    torch.testing.assert_close(slope[:6], torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.0]), rtol=0, atol=1e-6)
    assert slope[6].isnan()
    alone = activation_native.gelu(x)
    for found in (out, alone):
        assert found[0] == float("inf")
        torch.testing.assert_close(found[1:6], torch.tensor([1e30, 50.0, 0.0, 0.0, 0.0]), rtol=0, atol=1e-6)
        assert found[6:8].isnan().all()
    assert alone[8].abs() < 1e-6  # what it tends to


def test_gelu_in_inference_is_the_same_in_place_and_for_who_listens(monkeypatch):
    x, act, calls, real = torch.randn(2, 60, 64), Gelu(), [], activation_native.gelu
    monkeypatch.setattr(activation_native, "gelu", lambda *args: calls.append(args[1]) or real(*args))
    want = F.gelu(x)
    with torch.inference_mode():
        other = act(x)
        torch.testing.assert_close(other, want, rtol=1e-6, atol=4e-7)
        assert torch.equal(act(x, over=True), other)
        assert torch.equal(x, other)
        assert torch.equal(act(x[:, :, ::2]), F.gelu(x[:, :, ::2]))  # lies in pieces
    assert calls == [False, True]


def test_gelu_of_maps_that_lie_channels_last_or_in_pieces():
    x = torch.randn(2, 8, 20, 20)
    act, want = Gelu(), F.gelu(x)
    for given in (x, x.to(memory_format=torch.channels_last), torch.cat([x, x], dim=3)[..., :20]):
        mine, other = (given.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
        act(mine).square().sum().backward()
        F.gelu(other).square().sum().backward()
        torch.testing.assert_close(act(mine).detach(), want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=2e-6)


@pytest.fixture
def as_on_arm(monkeypatch):
    monkeypatch.setattr(product_native, "_slow", lambda: True)


@pytest.mark.parametrize("rows", [64, 67, 98, 1030])
@pytest.mark.parametrize(("inner", "cols"), [(4, 1), (24, 7), (384, 96), (388, 100), (772, 200)])
@pytest.mark.parametrize("turned", [True, False])
def test_a_product_is_that_of_its_matrices(rows, inner, cols, turned, as_on_arm):
    torch.manual_seed(rows + inner)
    x, bias = torch.randn(rows, inner), torch.randn(2 * cols)[::2]
    matrix = torch.randn(cols, inner).t() if turned else torch.randn(inner, cols)
    assert product_native.serves(x, matrix, bias)
    want, bound = x.double() @ matrix.double(), 2e-6 + 4e-7 * inner
    torch.testing.assert_close(product_native.multiply(x, matrix).double(), want, rtol=0, atol=bound)
    torch.testing.assert_close(product_native.multiply(x, matrix, bias).double(), want + bias, rtol=0, atol=bound)


def test_products_of_a_batch_go_the_same_way(as_on_arm):
    a, b = torch.randn(3, 70, 48), torch.randn(3, 48, 20)
    for right in (b, b.mT.contiguous().mT):
        with torch.inference_mode():
            assert product_native.serves(a, right)
            torch.testing.assert_close(product.matmul(a, right), a @ right)
    assert not product_native.serves(a.mT.contiguous().mT, b)  # it would be copied
    assert not product_native.serves(a[:, :63], b)
    assert not product_native.serves(a[:, :, :47].contiguous(), b[:, :47].contiguous())


def test_sizes_that_do_not_fit_are_left_to_pytorch_to_refuse(as_on_arm):
    rows, few, matrix, bias = torch.randn(3, 70, 24), torch.randn(70, 20), torch.randn(3, 24, 8), torch.randn(7)
    assert not product_native.serves(rows, matrix[:2])
    assert not product_native.serves(rows, matrix[:, :20].contiguous())
    assert not product_native.serves(rows[0], matrix[0], bias)
    assert not dense_stem_native.serves(torch.randn(1, 4, 9, 9), torch.randn(16, 3, 3, 3), torch.randn(16))
    assert not dense_stem_native.serves(torch.randn(1, 3, 9, 9), torch.randn(16, 3, 3, 3), torch.randn(8))
    first, kernels = layers(32)
    assert not dense_native.serves(channels_last(1, 48, 8, 8), first, kernels)
    assert not dense_native.serves(channels_last(1, 32, 8, 8), first[:2], kernels)
    with torch.inference_mode():
        for call in (lambda: Linear(24, 8)(few), lambda: product.matmul(rows, matrix[:2])):
            with pytest.raises(RuntimeError, match=r"must match|cannot be multiplied"):
                call()
        for channels in (1, 4, 6):
            for name in ("glnet_stl", "sot_7"):
                with pytest.raises(RuntimeError, match=rf"to have 3 channels, but got {channels}"):
                    timm.create_model(name, num_classes=3).eval()(torch.randn(2, channels, 64, 64))
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 4"):
        timm.create_model("sot_7", num_classes=3).train()(torch.randn(2, 4, 64, 64))


def test_what_is_no_number_stays_in_its_row(as_on_arm):
    x, matrix = torch.randn(70, 20), torch.randn(20, 11)
    x[66, 3] = float("nan")
    assert product_native.multiply(x, matrix).isnan().all(1).nonzero().tolist() == [[66]]
    x, matrix[3, 10] = torch.randn(70, 20), float("inf")
    assert not product_native.multiply(x, matrix)[:, :10].isnan().any()


def test_linear_layers_take_it_and_learn_the_same(as_on_arm, monkeypatch):
    called, real = [], product_native.multiply
    monkeypatch.setattr(product_native, "multiply", lambda *args: called.append(args[0].shape) or real(*args))
    layer, x = nn.Linear(24, 40), torch.randn(2, 50, 24, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    quick = Linear.like(layer, quick_training=True)
    found = torch.autograd.grad(quick(x).square().sum(), [x, *layer.parameters()])
    assert called == [(100, 24), (100, 40)]  # there and back
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(quick(x), layer(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert quick(x).dtype == torch.bfloat16
    assert len(called) == 3


@pytest.mark.parametrize("size", [(2, 3, 33, 70), (1, 4, 40, 36), (3, 8, 32, 32)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patches_are_multiplied_as_they_are_convolved(size, layout, as_on_arm):
    conv, x = PatchConv(size[1], 10, patch=4).to(memory_format=layout), torch.randn(size)
    want = F.conv2d(x, conv.weight, conv.bias, stride=4)
    for given in (x, x.to(memory_format=torch.channels_last)):
        with torch.inference_mode():
            assert conv.takes_product(given)
            torch.testing.assert_close(conv(given), want, rtol=1e-5, atol=1e-5)
    assert not conv.takes_product(x)  # a gradient may be asked for
    with torch.inference_mode():
        assert not conv.takes_product(x[:0])
        assert not conv.takes_product(x.double())


def channels_last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def layers(width, count=3, hidden=32, growth=16):
    first = [torch.randn(hidden, width + growth * i, 1, 1) / width**0.5 for i in range(count)]
    return first, [torch.randn(growth, hidden, 3, 3) / 17 for _ in range(count)]


def seen_as_rows(maps):
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


@pytest.mark.parametrize("size", [(2, 64, 14, 40), (1, 32, 7, 9), (1, 48, 1, 1), (2, 16, 2, 35)])
def test_a_dense_block_is_that_of_its_convolutions_and_back(size):
    torch.manual_seed(0)
    x, (first, kernels) = channels_last(*size), layers(size[1])
    assert dense_native.serves(x, first, kernels)
    exact = [tensor.double().requires_grad_() for tensor in (x, *first, *kernels)]
    want = exact[0]
    for one, two in zip(exact[1:4], exact[4:], strict=True):
        want = torch.cat([want, F.conv2d(F.conv2d(want.relu(), one).relu(), two, padding=1)], dim=1)
    whole = dense_native.dense_block(x, first, kernels)
    torch.testing.assert_close(whole.double(), want, rtol=0, atol=1e-5)
    if min(size[2:]) > 1:
        torch.testing.assert_close(dense_native.dense_block(x, first, kernels, halve=True), F.avg_pool2d(whole, 2))
    grad = channels_last(*want.shape)
    wanted = torch.autograd.grad(want, exact, grad.double())
    of_x, of_kernels = dense_native.dense_block_back(whole, seen_as_rows(grad).clone(), first, kernels)
    for found, right in zip((of_x, *of_kernels), (seen_as_rows(wanted[0]), *wanted[1:]), strict=True):
        assert (found - right).abs().max() < 1e-5 * right.abs().max().clamp_min(1)


@pytest.mark.parametrize("where", ["maps", "first", "kernels"])
def test_what_is_no_number_does_not_vanish_in_a_dense_block(where):
    x, (first, kernels) = channels_last(1, 32, 6, 6), layers(32)
    {"maps": x, "first": first[0], "kernels": kernels[0]}[where][0, 0, 0, 0] = float("nan")
    found = dense_native.dense_block(x, first, kernels)
    want = x
    for one, two in zip(first, kernels, strict=True):
        want = torch.cat([want, F.conv2d(F.conv2d(want.relu(), one).relu(), two, padding=1)], dim=1)
    assert torch.equal(found.isnan().any(3).any(2), want.isnan().any(3).any(2))


def test_a_dense_block_of_uneven_widths_is_left_to_pytorch():
    x = channels_last(1, 32, 8, 8)
    assert not dense_native.serves(x, *layers(32, growth=12))
    first, kernels = layers(32)
    assert not dense_native.serves(x, first, [*kernels[:2], torch.randn(32, 32, 3, 3)])


@pytest.mark.parametrize("size", [(2, 3, 33, 40), (1, 1, 1, 1), (2, 4, 5, 2), (1, 3, 17, 1)])
def test_the_stem_convolves_and_pools(size):
    x, weight, bias = torch.randn(size), torch.randn(16, size[1], 3, 3), torch.randn(32)[::2]
    want = F.max_pool2d(F.conv2d(x.double(), weight.double(), bias.double(), padding=1), 3, 2, 1)
    for given in (x, x.to(memory_format=torch.channels_last)):
        kernel = weight.to(memory_format=torch.channels_last)
        assert dense_stem_native.serves(given, kernel, bias)
        found = dense_stem_native.stem(given, kernel, bias)
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found.double(), want, rtol=0, atol=1e-5)
    assert not dense_stem_native.serves(x, torch.randn(12, size[1], 3, 3), torch.randn(12))
    x[0, 0, 0, 0] = float("nan")
    found = dense_stem_native.stem(x, weight, bias)
    assert found[0, :, 0, 0].isnan().all()
    assert not found[1:].isnan().any()


@pytest.mark.parametrize("size", [(2, 3, 33, 40), (1, 1, 1, 1), (2, 4, 5, 2), (1, 3, 17, 1), (1, 3, 70, 75)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_kernels_of_the_stem_get_the_gradient_of_what_was_the_largest_first(size, ties):
    torch.manual_seed(0)
    x, bias = torch.randn(size), torch.randn(16)
    weight = (torch.zeros if ties else torch.randn)(16, size[1], 3, 3).requires_grad_()
    made = F.max_pool2d(F.conv2d(x, weight, bias, padding=1), 3, 2, 1)
    for grad in (torch.randn_like(made), channels_last(*made.shape)):
        (want,) = torch.autograd.grad(made, weight, grad, retain_graph=True)
        found = dense_stem_native.kernel_gradient(x, weight.detach(), grad)
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        (mine,) = torch.autograd.grad(Stem.apply(x, weight, bias), weight, grad)
        assert torch.equal(mine, found)


@pytest.mark.parametrize("rows", [1, 15, 63, 12_544])
def test_moments_of_rows_far_from_zero(rows):
    matrix = torch.randn(rows, 48) * torch.linspace(0.1, 5, 48) + torch.linspace(-300, 300, 48)
    mean, spread = dense_moments_native.moments(matrix)
    exact = matrix.double()
    torch.testing.assert_close(mean, exact.mean(0), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(spread, (exact - exact.mean(0)).square().sum(0), rtol=1e-4, atol=1e-9)
    matrix[-1, 5] = float("nan")
    mean, spread = dense_moments_native.moments(matrix)
    assert mean.isnan().nonzero().tolist() == spread.isnan().nonzero().tolist() == [[5]]


@pytest.mark.parametrize("halve", [True, False])
@pytest.mark.parametrize("size", [(2, 16, 6, 8), (3, 32, 7, 9), (1, 16, 2, 3)])
def test_the_gradient_by_moments_and_pooling(size, halve):
    maps = channels_last(*size).requires_grad_()
    slope, offset = torch.randn(2, size[1])
    pooled = F.avg_pool2d(maps, 2) if halve else maps * 1.0
    grad = torch.randn_like(pooled)
    (want,) = torch.autograd.grad(pooled, maps, grad)
    want = seen_as_rows(want + offset[:, None, None] + slope[:, None, None] * maps.detach())
    for coming in (grad, grad.contiguous()):
        found = dense_moments_native.gradient(maps.detach(), coming, slope, offset, halve=halve)
        torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


def test_another_default_precision_and_device_change_nothing():
    images, (first, kernels) = torch.randn(1, 3, 12, 12), layers(16)
    weight, bias = torch.randn(16, 3, 3, 3), torch.randn(16)

    def run():
        maps = dense_stem_native.stem(images, weight, bias)
        whole = dense_native.dense_block(maps, first, kernels)
        back = dense_native.dense_block_back(whole, seen_as_rows(whole).clone(), first, kernels)[0]
        return maps, whole, back, *dense_moments_native.moments(seen_as_rows(whole))

    expected = run()
    try:
        torch.set_default_dtype(torch.float16)
        with torch.device("meta"):
            found = run()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
