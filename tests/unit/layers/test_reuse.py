"""Inference writes over what nobody looks at, and over nothing else."""

import pytest
import torch
from torch import nn

from saccade.layers.reuse import spare, unheard


@pytest.mark.parametrize(
    "listen", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_a_listener_is_found_at_any_depth_and_beside_what_is_left_out(listen):
    inner = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.GELU()))
    inner.register_module("left_out", None)
    assert unheard(nn.Identity(), inner)
    handle = getattr(inner[1][0], listen)(lambda *_: None)
    assert not unheard(nn.Identity(), inner)
    handle.remove()
    assert unheard(inner)


def test_nothing_is_spare_where_gradients_flow_or_precisions_differ():
    x, made = torch.randn(3), torch.randn(3)
    assert not spare(made, x)
    with torch.no_grad():
        assert spare(made, x)
        assert not spare(made.bfloat16(), x)
        assert not spare(x, x)
        assert not spare(torch.zeros(1).expand(3), x)
