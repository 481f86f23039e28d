import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, DropPath, LayerScale, StdConv2d
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import saccade
from saccade import kernels
from saccade.deployment import optimize as module
from saccade.deployment.folding import bias_folds
from saccade.deployment.optimize import optimize
from saccade.layers.token_embed import DenseNetEmbed, Transition

IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(5))
SMALL = {
    "glnet_nano": {"dims": (32, 64), "depths": (2, 2), "pattern": ("G", "GA"), "num_slots": 4, "layer_scale": 0.1},
    "glnet_stl": {"dims": (32, 64, 96), "depths": (1, 1, 1), "pattern": ("G", "G", "A"), "num_slots": 4},
    "nommer_tiny": {"img_size": 64, "embed_dim": 32, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)},
    "cvt_13": {"dims": (32, 64), "depths": (1, 1), "num_heads": (1, 2), "head_dim": 32},
    "sot_7": {"img_size": 64, "embed_dim": 32, "depth": 2, "cov_heads": 2, "cov_dim": 4},
    "t2t_vit_7": {"img_size": 64, "embed_dim": 32, "depth": 2},
}


class Fn(nn.Module):
    """Layers by name and a function of them and the input."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def stir(model):
    """Give norms and scales statistics and factors that a mistake in folding cannot survive."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.3, 3, generator=generator)
                module.weight.uniform_(0.3, 2, generator=generator)
                module.bias.normal_(generator=generator)
            elif isinstance(module, LayerScale):
                module.gamma.normal_(generator=generator)
    return model


def left(model):
    return [name for name, module in model.named_modules() if isinstance(module, _BatchNorm | LayerScale)]


def outputs(model, *args):
    with torch.no_grad():
        return model.eval()(*args)


def optimized(model, example=IMAGES):
    """Optimize and check, on another input than the example, that the function is the same."""
    fast = optimize(stir(model), example)
    other = torch.randn(example.shape, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(outputs(fast, other), outputs(copy.deepcopy(model), other), rtol=1e-4, atol=1e-4)
    return fast


def conv(**options):
    return nn.Conv2d(3, 3, 3, padding=1, **options)


@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded_into_the_convolution_before_it(bias):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    model += nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, bias=bias), nn.BatchNorm2d(4))
    assert left(optimized(model)) == []


def test_batch_norm_is_folded_into_the_linear_layer_before_it():
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 5, bias=False), nn.BatchNorm1d(5))
    assert left(optimized(model)) == []


def test_batch_norm_with_activation_leaves_its_activation():
    fast = optimized(nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4)))
    assert left(fast) == []
    assert any(isinstance(module, nn.ReLU) for module in fast.modules())


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_before_a_layer_is_folded_where_no_zeros_are_padded(groups):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=groups))
    assert left(optimized(model)) == []
    padded = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3, padding=1))
    assert left(optimized(padded)) == ["0"]


def test_layer_scale_is_folded_through_a_cut_of_the_tokens_axis():
    model = Fn(
        lambda m, x: m.scale(m.linear(x.flatten(2).mT).unflatten(1, (12, 12))),
        linear=nn.Linear(3, 5),
        scale=LayerScale(5),
    )
    assert left(optimized(model)) == []


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.norm(y := m.conv(x)) + y,
        lambda m, x: m.norm(y := m.conv(x)) + y.flatten(2).mT.mean((1, 2))[:, None, None, None],
        lambda m, x: [y := m.conv(x), m.norm(y)],
        lambda m, x: {"map": (y := m.conv(x))[:, :1], "norm": m.norm(y)},
        lambda m, x: m.norm(m.conv(x).mul_(0.5)),
        lambda m, x: m.norm(m.conv(x).transpose(2, 3).flip(1)),
        lambda m, x: m.norm(m.conv(x).transpose(1, 2)[:, :3]),
        lambda m, x: m.norm(m.conv(x)) + m.conv(x.flip(0)),
        lambda m, x: m.norm(m.conv(x)) + m.norm(x),
        lambda m, x: m.norm(m.conv(x)) + F.conv2d(x, m.conv.weight, padding=1),
        lambda m, x: m.norm(m.conv(x)) + m.norm.bias.sum(),
    ],
    ids=[
        "skip",
        "read as a view",
        "returned",
        "returned in part",
        "changed in place",
        "changed",
        "other axes",
        "layer used elsewhere",
        "norm used elsewhere",
        "weight used elsewhere",
        "bias used elsewhere",
    ],
)
def test_what_something_else_reads_is_not_folded(forward):
    assert left(optimized(Fn(forward, conv=conv(), norm=nn.BatchNorm2d(3)))) == ["norm"]


def test_a_pair_that_runs_twice_is_folded_and_a_layer_before_two_norms_is_not():
    twice = Fn(lambda m, x: m.norm(m.conv(m.norm(m.conv(x)))), conv=conv(), norm=nn.BatchNorm2d(3))
    assert left(optimized(twice)) == []
    two = Fn(
        lambda m, x: m.norm(m.conv(x)) + m.other(m.conv(x)),
        conv=conv(),
        norm=nn.BatchNorm2d(3),
        other=nn.BatchNorm2d(3),
    )
    assert left(optimized(two)) == ["norm", "other"]


def test_shared_weights_are_not_folded():
    first, second = conv(), conv()
    second.weight = first.weight
    assert left(optimized(nn.Sequential(first, nn.BatchNorm2d(3), nn.ReLU(), second))) == ["1"]


def test_channels_on_another_axis_of_the_same_length_are_not_folded():
    model = Fn(lambda m, x: m.norm(m.linear(x.flatten(1, 2))), linear=nn.Linear(12, 36), norm=nn.BatchNorm1d(36))
    assert left(optimized(model)) == ["norm"]


def test_a_convolution_that_standardises_its_weight_is_not_folded():
    assert left(optimized(nn.Sequential(StdConv2d(3, 4, 3), nn.BatchNorm2d(4)))) == ["1"]


def test_a_norm_without_running_statistics_is_not_folded():
    model = nn.Sequential(conv(), nn.BatchNorm2d(3, track_running_stats=False))
    assert left(optimize(model, IMAGES)) == ["1"]


@pytest.mark.parametrize("place", ["conv", "norm"])
def test_a_module_with_a_hook_of_its_own_is_not_folded(place):
    model = nn.Sequential()
    model.add_module("conv", conv())
    model.add_module("norm", nn.BatchNorm2d(3))
    model.get_submodule(place).register_forward_hook(lambda _module, _args, output: output * 2)
    assert left(optimized(model)) == ["norm"]


def test_a_change_that_moves_the_answer_is_undone_and_the_others_stay():
    def forward(m, x):
        return m.fine(m.kept[0](m.conv(x)))  # called by another way than its name: folding would norm twice

    model = Fn(forward, conv=conv(), norm=nn.BatchNorm2d(3), fine=nn.Sequential(conv(), nn.BatchNorm2d(3)))
    model.kept = [model.norm]
    assert left(optimized(model)) == ["norm"]


def test_a_model_whose_tensors_cannot_be_followed_is_not_folded():
    def forward(m, x):
        return m.norm(m.conv(x)) * torch.eye(3).to_sparse().to_dense().sum()

    assert left(optimized(Fn(forward, conv=conv(), norm=nn.BatchNorm2d(3)))) == ["norm"]


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


def vit(**options):
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 10}
    return stir(timm.create_model("vit_tiny_patch16_224", init_values=0.1, **size, **options))


def test_layer_scales_of_a_vit_are_folded_and_the_example_is_made_for_its_size():
    assert left(optimize(vit())) == []


def test_a_layer_scale_behind_a_plugin_stays():
    model = vit()
    saccade.attach(model, saccade.ContextBroadcast())
    fast = optimize(model)
    assert left(fast) == ["blocks.2.ls2", "blocks.3.ls2"]
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(outputs(fast, x), outputs(model, x), rtol=1e-4, atol=1e-4)


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


def test_a_bias_goes_to_the_linear_layer_that_alone_reads_the_convolution():
    torch.manual_seed(0)
    model = timm.create_model("glnet_nano", depths=(1, 1, 1), num_classes=5).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        want = model(x)
        undos = [change() for change in bias_folds(model, (x,))]
        got = model(x)
    without = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and module.bias is None]
    # not those of the position encoding and of the feed-forward part, which are added to what they convolve
    assert without == [
        "stages.0.blocks.0.mixer.local_branch.depthwise",
        "stages.1.blocks.0.mixer.local_branch.depthwise",
    ]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for undo in reversed(undos):
        undo()
    assert all(m.bias is not None for m in model.modules() if isinstance(m, nn.Conv2d))


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
