"""Inference writes over what nobody looks at, and over nothing else."""

import copy

import pytest
import torch
from torch import nn

from saccade.layers.glmix import Block, GLMix, MapAttention
from saccade.layers.reuse import spare, unheard

GRID = (6, 6)


def block(mixer: str = "parallel") -> nn.Module:
    inner = MapAttention(32, num_heads=2) if mixer == "attention" else GLMix(32, num_heads=2, mixer=mixer, num_slots=4)
    return Block(32, inner, mlp_ratio=2.0, pos_conv=True, conv_mlp=True, layer_scale=0.5).eval()


@pytest.mark.parametrize("mixer", ["parallel", "local_global", "global", "local", "attention"])
def test_inference_equals_the_forward_pass_of_training(mixer):
    model, x = block(mixer), torch.randn(2, 36, 32)
    given = x.clone()
    want = model(x, GRID).detach()
    with torch.inference_mode():
        torch.testing.assert_close(model(x, GRID), want, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, given)


@pytest.mark.parametrize("name", ["mixer", "mixer.global_branch", "mlp", "mlp.fc1", "mlp.act", "mlp.depthwise", "ls2"])
def test_a_hook_sees_what_a_module_took_and_returned(name):
    model, x = block(), torch.randn(2, 36, 32)
    seen: list[torch.Tensor] = []

    def listen(_module, args, output):
        seen.extend([args[0], output])

    model.get_submodule(name).register_forward_hook(listen)
    kept = []
    with torch.no_grad():
        model(x, GRID)
        kept, seen[:] = [tensor.clone() for tensor in seen], []
    model(x, GRID)
    for late, right in zip(kept, seen, strict=True):
        torch.testing.assert_close(late, right.detach(), rtol=1e-5, atol=1e-6)


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


def test_modules_that_return_their_input_do_not_have_it_overwritten():
    model = block()
    model.norm1 = model.norm2 = nn.Identity()
    model.mixer, model.mlp, model.pos_conv = Same(), Same(), None
    model.ls1 = model.ls2 = nn.Identity()
    x = torch.randn(1, 36, 32)
    given = x.clone()
    with torch.no_grad():
        assert torch.equal(model(x, GRID), 4 * given)
    assert torch.equal(x, given)


class Same(nn.Module):
    def forward(self, x, *_):
        return x


def test_nothing_is_spare_where_gradients_flow_or_precisions_differ():
    x, made = torch.randn(3), torch.randn(3)
    assert not spare(made, x)
    with torch.no_grad():
        assert spare(made, x)
        assert not spare(made.bfloat16(), x)
        assert not spare(x, x)
        assert not spare(torch.zeros(1).expand(3), x)


def test_batches_of_functions_still_work():
    model, x = block(), torch.randn(3, 1, 36, 32)
    copy_of_it = copy.deepcopy(model)
    with torch.no_grad():
        got = torch.func.vmap(lambda images: copy_of_it(images, GRID))(x)
        torch.testing.assert_close(got[1], model(x[1], GRID), rtol=1e-5, atol=1e-5)
