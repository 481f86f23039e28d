import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import nn

import saccade
from saccade import kernels
from saccade.deployment import optimize as module
from saccade.deployment.optimize import optimize
from saccade.layers.token_embed import DenseNetEmbed, Transition
from support.optimizing import IMAGES, Fn, conv, left, optimized, outputs, stir, vit

SMALL = {
    "glnet_nano": {"dims": (32, 64), "depths": (2, 2), "pattern": ("G", "GA"), "num_slots": 4, "layer_scale": 0.1},
    "glnet_stl": {"dims": (32, 64, 96), "depths": (1, 1, 1), "pattern": ("G", "G", "A"), "num_slots": 4},
    "nommer_tiny": {"img_size": 64, "embed_dim": 32, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)},
    "cvt_13": {"dims": (32, 64), "depths": (1, 1), "num_heads": (1, 2), "head_dim": 32},
    "sot_7": {"img_size": 64, "embed_dim": 32, "depth": 2, "cov_heads": 2, "cov_dim": 4},
    "t2t_vit_7": {"img_size": 64, "embed_dim": 32, "depth": 2},
}


def test_a_copy_made_in_inference_mode_works_outside_of_it():
    with torch.inference_mode():
        fast = optimize(stir(nn.Sequential(conv(), nn.BatchNorm2d(3))), IMAGES)
    assert left(fast) == []
    assert not any(p.is_inference() for p in fast.parameters())
    assert fast(IMAGES.clone().requires_grad_()).requires_grad


def test_dropout_is_taken_out_and_nothing_has_gradients():
    model = nn.Sequential(conv(), nn.Dropout(0.5), DropPath(0.5), nn.BatchNorm2d(3))
    outputs(model, IMAGES)
    model.train()(IMAGES).sum().backward()
    fast = optimize(model, IMAGES)
    assert not any(isinstance(module, nn.Dropout | DropPath) for module in fast.modules())
    assert left(fast) == []
    assert not any(module.training for module in fast.modules())
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert all(parameter.grad is None for parameter in fast.parameters())


def test_convolutions_are_laid_channels_last_and_tied_weights_stay_one():
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1))
    model[2].weight = model[0].weight
    fast = optimized(model)
    assert fast[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert fast[0].weight is fast[2].weight


@pytest.mark.parametrize("name", SMALL)
def test_backbones_compute_the_same_at_any_size_and_through_every_door(name):
    model = stir(timm.create_model(name, num_classes=10, drop_path_rate=0.1, **SMALL[name]))
    fast = optimize(model, torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    expected = {"glnet_stl": ["stages.1.downsample.norm", "stages.2.downsample.norm", "norm"], "glnet_nano": ["norm"]}
    stays = [place for place in left(fast) if "dct" not in place and not place.endswith("ls1")]
    assert stays == expected.get(name, [])
    if name == "glnet_nano":  # of the attention's scales; a GLMix block adds two branches before its own
        assert sum(place.endswith("ls1") for place in left(fast)) == 3
    for size in ((64, 64), (28, 28), (40, 72)):
        x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(outputs(fast, x), outputs(model, x), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        for a, b in zip(
            fast.forward_intermediates(x, intermediates_only=True),
            model.forward_intermediates(x, intermediates_only=True),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_given_model_is_untouched_and_its_plugins_come_off():
    model = vit(drop_rate=0.1).train()
    bare = outputs(copy.deepcopy(model), x := torch.randn(1, 3, 32, 32))
    handle = saccade.attach(model, saccade.ContextBroadcast(scale=True))
    head = saccade.attach(model, saccade.SecondOrderHead(num_classes=10, head_dim=4))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    modules = dict(model.named_modules())
    hooks = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in modules.items()}
    fast = optimize(model)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert list(model.state_dict()) == list(state)
    assert all(module is modules[name] for name, module in model.named_modules())
    assert {n: len(m._forward_hooks) + len(m._forward_pre_hooks) for n, m in model.named_modules()} == hooks
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in fast.parameters()}
    assert len(saccade.attached(model)) == len(saccade.attached(fast)) == 2
    torch.testing.assert_close(outputs(fast, x), outputs(copy.deepcopy(model), x), rtol=1e-4, atol=1e-4)
    head.detach()
    handle.detach()
    assert torch.equal(outputs(model, x), bare)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_copy_has_the_given_models_precision(dtype):
    model = stir(nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU())).to(dtype)
    fast = optimize(model, IMAGES)
    assert {p.dtype for p in fast.parameters()} == {dtype}
    assert left(fast) == []
    wide = copy.deepcopy(model).double()
    expected = outputs(wide, IMAGES.double())
    close = 0.03 if dtype is torch.bfloat16 else 1e-12
    assert (outputs(fast, IMAGES.to(dtype)) - expected).abs().max() < close * expected.abs().max()


def test_outputs_may_be_dicts_and_lists_of_tensors():
    model = Fn(lambda m, x: {"a": m.norm(m.conv(x)), "b": [x.mean(), (x > 0)]}, conv=conv(), norm=nn.BatchNorm2d(3))
    assert left(optimized(model)) == []


def test_infinite_outputs_are_compared_by_place():
    model = nn.Sequential(conv(), nn.BatchNorm2d(3), Fn(lambda _, x: x.masked_fill(x < 0, float("-inf"))))
    assert left(optimize(stir(model), IMAGES)) == []


def test_a_model_that_writes_to_its_input_leaves_the_example_as_it_was():
    example = IMAGES.clone()
    model = Fn(lambda m, x: m.norm(m.conv(x.mul_(0.5))), conv=conv(), norm=nn.BatchNorm2d(3))
    assert left(optimize(stir(model), example)) == []
    assert torch.equal(example, IMAGES)


def test_several_arguments_are_given_as_a_tuple():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = conv(), nn.BatchNorm2d(3)

        def forward(self, x, times):
            return self.norm(self.conv(x)) * times

    fast = optimize(Two(), (IMAGES, 2.0))
    assert left(fast) == []


def test_what_a_graph_returned_is_copied_out_of_it():
    answer = {"maps": [torch.ones(2), torch.zeros(3)], "names": ("a", "b")}
    copied = module._own_answer(nn.Identity(), (), answer)
    answer["maps"][0].fill_(7)
    assert copied["names"] == ("a", "b")
    torch.testing.assert_close(copied["maps"], [torch.ones(2), torch.zeros(3)])


def test_compiled_code_is_compared_too(monkeypatch):
    model = nn.Sequential(conv(), nn.BatchNorm2d(3))
    monkeypatch.setattr(torch, "compile", lambda m: nn.Sequential(m, nn.Identity()))
    assert isinstance(optimize(model, IMAGES, compile=True)[1], nn.Identity)
    monkeypatch.setattr(torch, "compile", lambda m: nn.Sequential(m, nn.ReLU()))
    with pytest.raises(ValueError, match="compiled copy's answer differs from the first by"):
        optimize(model, IMAGES, compile=True)


@pytest.mark.slow
def test_a_compiled_copy_computes_the_same():
    model = stir(nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU()))
    fast = optimize(model, IMAGES, compile=True)
    torch.testing.assert_close(outputs(fast, IMAGES), outputs(model, IMAGES), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_optimized_is_refused_with_the_reason():
    model = nn.Sequential(conv(), nn.BatchNorm2d(3))
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, got str"):
        optimize("resnet50")
    with pytest.raises(ValueError, match="no pretrained_cfg or default_cfg"):
        optimize(model)
    with pytest.raises(ValueError, match=r"fails on an example of shape \(2, 4, 12, 12\)"):
        optimize(model, torch.zeros(2, 4, 12, 12))
    with pytest.raises(TypeError, match="example=list: expected"):
        optimize(model, [1, 2])
    with pytest.raises(ValueError, match="tolerance=0: expected"):
        optimize(model, IMAGES, tolerance=0)
    with pytest.raises(ValueError, match="meta device"):
        optimize(copy.deepcopy(model).to("meta"), IMAGES)
    with pytest.raises(ValueError, match=r"parameters in torch\.float32, torch\.float64"):
        optimize(nn.Sequential(conv(), conv().double()), IMAGES)
    with pytest.raises(TypeError, match="compile or script it afterwards"):
        optimize(torch.compile(model), IMAGES)
    with pytest.raises(TypeError, match="returned str where a tensor was expected"):
        optimize(Fn(lambda m, x: {"out": m.conv(x), "name": "x"}, conv=conv()), IMAGES)
    with pytest.raises(ValueError, match="second run of the model itself differs"):
        optimize(Fn(lambda m, x: F.dropout(m.conv(x)), conv=conv()), IMAGES)


def test_a_model_on_several_devices_is_refused(monkeypatch):
    model = conv()
    monkeypatch.setattr(model, "parameters", lambda: iter([model.weight, Elsewhere()]))
    with pytest.raises(ValueError, match="is on cpu, cuda:1; move it to one device"):
        optimize(model, IMAGES)


class Elsewhere:
    """Stands for a parameter on a second device."""

    device, is_meta, dtype = torch.device("cuda:1"), False, torch.float32

    def is_floating_point(self):
        return True


def test_sot_goes_its_quick_way_on_the_cpu_with_norms_folded():
    model = timm.create_model("sot_7", **SMALL["sot_7"])
    images = torch.randn(2, 3, 64, 64)
    model(3 * images + 1)  # for statistics that are not 0 and 1
    fast = optimize(model.eval(), images)
    embed = next(m for m in fast.modules() if isinstance(m, DenseNetEmbed))
    assert all(isinstance(m.norm, nn.Identity) for m in embed.modules() if isinstance(m, Transition))
    kernels.apply(fast, "infer", "dense_cpu")
    with torch.no_grad():
        assert embed.takes(images)
        quick = embed(images)
        plain = embed.proj(embed.blocks(embed.stem(images)))
    torch.testing.assert_close(quick, plain)
