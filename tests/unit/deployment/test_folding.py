"""Layers are folded into their neighbours where that leaves the answer, and nowhere else."""

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, LayerScale, StdConv2d
from torch import nn

import saccade
from saccade.deployment.folding import bias_folds
from saccade.deployment.optimize import optimize
from support.optimizing import IMAGES, Fn, conv, left, optimized, outputs, vit


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


def test_layer_scales_of_a_vit_are_folded_and_the_example_is_made_for_its_size():
    assert left(optimize(vit())) == []


def test_a_layer_scale_behind_a_plugin_stays():
    model = vit()
    saccade.attach(model, saccade.ContextBroadcast())
    fast = optimize(model)
    assert left(fast) == ["blocks.2.ls2", "blocks.3.ls2"]
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(outputs(fast, x), outputs(model, x), rtol=1e-4, atol=1e-4)


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
