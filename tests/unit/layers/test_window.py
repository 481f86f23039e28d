import pytest
import torch
from torch import Tensor
from torch.export import Dim

from saccade.layers import window as module
from saccade.layers.window import WindowAttention, crop, extend, resize_bias_table, tile, untile
from support.golden import part, part_state_dict, relative_error, tensor


def layer(window_size: int = 3, dim: int = 8, num_heads: int = 2) -> WindowAttention:
    torch.manual_seed(0)
    attention = WindowAttention(dim, num_heads=num_heads, window_size=window_size).double()
    torch.nn.init.normal_(attention.relative_position_bias_table)
    return attention


def direct(attention: WindowAttention, x: Tensor) -> Tensor:
    """The textbook form: window by window, head by head, with the real positions of the window only."""
    side, heads, width = attention.window_size, attention.num_heads, x.shape[3] // attention.num_heads
    out = torch.zeros_like(x)
    for top in range(0, x.shape[1], side):
        for left in range(0, x.shape[2], side):
            window = x[:, top : top + side, left : left + side]
            places = [(r, c) for r in range(window.shape[1]) for c in range(window.shape[2])]
            index = torch.tensor(
                [
                    [(r - s + side - 1) * (2 * side - 1) + (c - d + side - 1) for s, d in places]
                    for r, c in places  # query (r, c), key (s, d)
                ]
            )
            q, k, v = attention.qkv(window.flatten(1, 2)).unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
            logits = (q * width**-0.5) @ k.mT + attention.relative_position_bias_table[index].permute(2, 0, 1)
            mixed = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
            out[:, top : top + side, left : left + side] = attention.proj(mixed).unflatten(1, window.shape[1:3])
    return out


def saved_bytes(function, *inputs: Tensor) -> int:
    storages = {}

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = function(*inputs)
    assert output.requires_grad
    return sum(storages.values())


def test_published_windows_are_reproduced():
    record, arrays = part("nommer_parts", "window_attention_7")
    state = part_state_dict(record)
    del state["relative_position_index"]
    attention = WindowAttention(16, num_heads=2, window_size=7).double()
    attention.load_state_dict(state)
    x = tensor("nommer_parts/win/x", record["input_shape"]).double()
    with torch.no_grad():
        y = attention(x.unflatten(1, (7, 7))).flatten(1, 2)
    assert relative_error(y, arrays["out"]) < 1e-12


@pytest.mark.parametrize("size", [(3, 3), (6, 9), (7, 5), (1, 1), (2, 8)])
def test_equals_direct_form_forward_and_gradients(size):
    attention = layer()
    x = torch.randn(2, *size, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, *size, 8, dtype=torch.float64)
    inputs = [x, *attention.parameters()]
    got, want = attention(x), direct(attention, x)
    assert relative_error(got.detach(), want.detach()) < 1e-12
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_what_is_added_at_the_border_changes_nothing(monkeypatch):
    attention = layer()
    x = torch.randn(1, 7, 8, 8, dtype=torch.float64)
    want = attention(x)

    def extend_with_noise(x: Tensor, side: int) -> Tensor:
        extended = extend(x, side)
        noisy = torch.full_like(extended, 1e3)
        noisy[:, : x.shape[1], : x.shape[2]] = x
        return noisy

    monkeypatch.setattr(module, "extend", extend_with_noise)
    assert torch.equal(attention(x), want)


def test_a_window_does_not_see_its_neighbours():
    attention = layer()
    x = torch.randn(1, 6, 6, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, 3:] += 1
    assert torch.equal(attention(x)[:, :3], attention(changed)[:, :3])


def test_fused_kernel_keeps_less_for_backward_than_the_plain_form():
    attention = layer(window_size=7, dim=32).float()
    attention.relative_position_bias_table.requires_grad_(False)  # the CPU has no fused kernel that trains it
    x = torch.randn(2, 28, 28, 32, requires_grad=True)

    def plain(x: Tensor) -> Tensor:
        windows = x.reshape(2, 4, 7, 4, 7, 32).transpose(2, 3).reshape(32, 49, 32)
        q, k, v = attention.qkv(windows).reshape(32, 49, 3, 2, 16).permute(2, 0, 3, 1, 4)
        weights = ((q * 16**-0.5) @ k.mT + attention.relative_position_bias()).softmax(-1)
        mixed = attention.proj((weights @ v).transpose(1, 2).reshape(32, 49, 32))
        return mixed.reshape(2, 4, 4, 7, 7, 32).transpose(2, 3).reshape(x.shape)

    assert torch.allclose(attention(x), plain(x), atol=1e-5)
    assert saved_bytes(attention, x) < saved_bytes(plain, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite(dtype):
    attention = layer().to(dtype)
    x = (10 * torch.randn(1, 7, 5, 8, dtype=dtype)).requires_grad_()
    attention(x).float().sum().backward()
    assert attention(x).isfinite().all()
    assert x.grad.isfinite().all()


def test_another_window_size_resamples_the_table():
    attention = layer(window_size=4)
    torch.nn.init.ones_(attention.relative_position_bias_table)
    attention.set_window_size(6)
    assert attention.relative_position_bias_table.shape == (121, 2)
    assert torch.allclose(attention.relative_position_bias_table, torch.ones(121, 2, dtype=torch.float64))
    assert attention(torch.randn(1, 5, 13, 8, dtype=torch.float64)).shape == (1, 5, 13, 8)
    table = torch.randn(49, 2)
    assert resize_bias_table(table, 49) is table


def test_tiling_is_undone_by_untiling():
    x = torch.randn(2, 6, 9, 4)
    tiles = tile(x, 3)
    assert torch.equal(tiles[:, 1, 2], x[:, 3:6, 6:9])
    assert torch.equal(untile(tiles), x)


def test_extending_repeats_the_edge_and_cropping_undoes_it():
    x = torch.randn(1, 4, 5, 2)
    extended = extend(x, 3)
    assert extended.shape == (1, 6, 6, 2)
    assert torch.equal(extended[:, 5, 5], x[:, 3, 4])
    assert torch.equal(crop(extended, (4, 5)), x)
    assert extend(x[:, :3, :3], 3).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("window_size", [6, 7])
def test_one_exported_program_serves_every_size(window_size):
    attention = layer(window_size).float()
    sizes = {1: Dim("h", min=16, max=512), 2: Dim("w", min=16, max=512)}
    program = torch.export.export(attention, (torch.randn(2, 21, 33, 8),), dynamic_shapes=(sizes,)).module()
    for size in ((21, 33), (42, 36), (17, 84), (49, 49)):
        x = torch.randn(2, *size, 8)
        assert torch.allclose(program(x), attention(x), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"num_heads": 3}, "does not divide dim=8"), ({"window_size": 0}, "1 or more")]
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        WindowAttention(8, **{"num_heads": 2, **arguments})
