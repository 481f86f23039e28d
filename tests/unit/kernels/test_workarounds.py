import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saccade.kernels import workarounds
from saccade.kernels.modules.attention import attend_by_products
from saccade.kernels.workarounds import WindowAttentionByProducts
from saccade.layers.window import WindowAttention


def layer() -> WindowAttention:
    torch.manual_seed(0)
    attention = WindowAttention(8, num_heads=2, window_size=3).double()
    nn.init.normal_(attention.relative_position_bias_table)
    return attention


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the keys that products attended to."""
    seen: list[torch.Size] = []

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        seen.append(key.shape)
        return attend_by_products(query, key, value, bias)

    monkeypatch.setattr(workarounds, "attend_by_products", attend)
    return seen


@pytest.fixture
def compiled_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)


@pytest.mark.parametrize("length", [8, 9])
def test_products_equal_the_fused_kernel(length: int) -> None:
    inputs = [
        *torch.randn(3, 5, 2, length, 4, dtype=torch.float64),
        torch.randn(2, length, length, dtype=torch.float64),
    ]
    answers: list[Any] = []
    gradients = []
    for attend in (attend_by_products, layer().attend):
        leaves = [x.clone().requires_grad_() for x in inputs]
        answers.append(attend(*leaves))
        gradients.append(torch.autograd.grad(answers[-1].square().sum(), leaves))
    torch.testing.assert_close(*answers)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("size", [(6, 6), (7, 5)])
def test_a_trained_bias_is_added_to_products_in_compiled_training(size, asked, compiled_for_a_gpu) -> None:
    attention, x = layer(), torch.randn(2, *size, 8, dtype=torch.float64)
    want = attention(x)
    attention.__class__ = WindowAttentionByProducts
    torch.testing.assert_close(attention(x), want)
    assert len(asked) == 1
    with torch.no_grad():
        attention(x)
    attention.relative_position_bias_table.requires_grad_(False)
    attention(x)
    assert len(asked) == 1  # a bias without a gradient is no trouble


def test_elsewhere_the_fused_kernel_attends(asked) -> None:
    attention, x = layer(), torch.randn(2, 6, 6, 8, dtype=torch.float64)
    want = attention(x)
    attention.__class__ = WindowAttentionByProducts
    assert torch.equal(attention(x), want)
    assert not asked


def test_they_are_applied_for_training_even_where_kernels_are_off(monkeypatch) -> None:
    module = importlib.import_module("saccade.kernels.apply")
    possible = module.unavailable
    monkeypatch.setattr(module, "unavailable", lambda kernel, _, mode: possible(kernel, "cuda", mode))
    model = nn.Sequential(layer())
    module.apply(model, "infer", "off")
    assert type(model[0]) is WindowAttention
    handle = module.apply(model, "train", "off")
    assert type(model[0]) is WindowAttentionByProducts
    handle.undo()
    assert type(model[0]) is WindowAttention
