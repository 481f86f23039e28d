import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from saccade.models import nommer  # noqa: F401 (registers the backbones)
from saccade.plugins import ContextBroadcast, HostError, attach, find_host
from support.broadcasting import bert, stir

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SWIN = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (1, 1, 2), "num_heads": (1, 2, 2), "window_size": 4}


def vit(**kwargs):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 5, "num_heads": 2, "num_classes": 5}
    return stir(timm.create_model("vit_tiny_patch16_224", **{**sizes, **kwargs}).double().eval())


def branches(model, block, x):
    """The residual sum before the MLP and the MLP branch, of a block without plug-in."""
    middle = x + block.attn(block.norm1(x))
    return middle, block.mlp(block.norm2(middle))


# What it computes


def test_branch_is_mixed_half_and_half_with_uniform_attention():
    model = vit()
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    middle, branch = branches(model, model.blocks[-1], x)
    uniform = torch.zeros(17, 17, dtype=torch.float64).softmax(-1) @ branch
    attach(model, ContextBroadcast())
    torch.testing.assert_close(model.blocks[-1](x), middle + (branch + uniform) / 2)


def test_scaled_branch_gets_a_share_of_uniform_attention():
    model = vit()
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    before, (middle, branch) = model.blocks[-1](x), branches(model, model.blocks[-1], x)
    handle = attach(model, ContextBroadcast(scale=True))
    assert torch.equal(model.blocks[-1](x), before)
    share = torch.randn(24, dtype=torch.float64)
    handle.parameters()[-1].data.copy_(share)
    torch.testing.assert_close(model.blocks[-1](x), middle + branch + share * branch.mean(1, keepdim=True))


def test_middle_and_end_of_the_mlp_agree():
    model = vit()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    outputs = {}
    for position in ("mlp", "mlp_mid", "mlp_front"):
        handle = attach(model, ContextBroadcast(position=position, layers="all"))
        outputs[position] = model(x)
        handle.detach()
    torch.testing.assert_close(outputs["mlp_mid"], outputs["mlp"], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(outputs["mlp_front"], outputs["mlp"])


def test_middle_and_end_of_the_scaled_form_differ_by_the_bias_alone():
    model = vit()
    block, x = model.blocks[-1], torch.randn(2, 17, 24, dtype=torch.float64)
    outputs = {}
    for position in ("mlp", "mlp_mid"):
        handle = attach(model, ContextBroadcast(position=position, scale=True))
        handle.parameters()[-1].data.fill_(0.3)
        outputs[position] = block(x)
        handle.detach()
    bias = (0.3 * block.mlp.fc2.bias).expand_as(x)
    torch.testing.assert_close(outputs["mlp"] - outputs["mlp_mid"], bias)


def test_attention_and_both():
    model = vit()
    block, x = model.blocks[-1], torch.randn(2, 17, 24, dtype=torch.float64)

    def mixed(y):
        return (y + y.mean(1, keepdim=True)) / 2

    middle = x + mixed(block.attn(block.norm1(x)))
    branch = block.mlp(block.norm2(middle))
    for position, want in (("attention", middle + branch), ("both", middle + mixed(branch))):
        handle = attach(model, ContextBroadcast(position=position))
        torch.testing.assert_close(block(x), want)
        handle.detach()


def test_class_token_can_be_left_out():
    model = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2
    )
    model = stir(model.double().eval())
    x = torch.randn(2, 18, 24, dtype=torch.float64)
    middle, branch = branches(model, model.blocks[-1], x)
    attach(model, ContextBroadcast(class_token=False))
    got = model.blocks[-1](x) - middle
    torch.testing.assert_close(got[:, :2], branch[:, :2])
    words = branch[:, 2:]
    torch.testing.assert_close(got[:, 2:], (words + words.mean(1, keepdim=True)) / 2)


def test_class_token_of_the_last_stage_is_left_out_there_alone():
    model = timm.create_model("nommer_tiny", embed_dim=16, depths=(1, 1, 1, 1)).eval()
    attach(model, ContextBroadcast(class_token=False, layers="all"))
    assert [stage.blocks[0].broadcast.skip for stage in model.stages] == [0, 0, 0, 1]


@pytest.mark.parametrize("name", ["convnext_tiny", "convnext_atto"], ids=["channels_last", "channels_first"])
def test_maps_are_averaged_over_their_places(name):
    model = timm.create_model(name, depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)).double().eval()
    mlp = model.stages[-1].blocks[0].mlp
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    x = x.permute(0, 3, 1, 2) if name == "convnext_atto" else x
    axes = (2, 3) if name == "convnext_atto" else (1, 2)
    branch = mlp(x)
    attach(model, ContextBroadcast())
    torch.testing.assert_close(mlp(x), (branch + branch.mean(axes, keepdim=True)) / 2)


def test_an_image_of_another_shape_is_averaged_whole():
    model = timm.create_model("swin_tiny_patch4_window7_224", **{**SWIN, "img_size": (32, 64)}).double().eval()
    seen = []
    mlp = model.layers[-1].blocks[-1].mlp
    attach(model, ContextBroadcast())
    mlp.fc2.register_forward_hook(lambda module, args, output: seen.append(output))
    mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    model(torch.randn(2, 3, 32, 64, dtype=torch.float64))
    before, after = (x.flatten(1, -2) for x in seen)
    assert before.shape[1] == 4 * 8
    torch.testing.assert_close(after, (before + before.mean(1, keepdim=True)) / 2)


def test_intermediate_features_have_it_too():
    model = vit()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    bare = model.forward_intermediates(x, intermediates_only=True)
    attach(model, ContextBroadcast())
    changed = [not torch.equal(a, b) for a, b in zip(bare, model.forward_intermediates(x)[1], strict=True)]
    assert changed == [False, False, True, True, True]


# Where it goes


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [("upper", [2, 3, 4]), ("all", [0, 1, 2, 3, 4]), ([0, -1], [0, 4]), ((-2, 3), [3])],
    ids=str,
)
def test_layers(layers, chosen):
    model = vit()
    attach(model, ContextBroadcast(layers=layers))
    assert [i for i, block in enumerate(model.blocks) if hasattr(block, "broadcast")] == chosen


@pytest.mark.parametrize("layers", [[5], [-6, 0], []], ids=str)
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(HostError, match=r"has 5 blocks, so 'upper', 'all' or numbers from -5 to 4"):
        attach(vit(), ContextBroadcast(layers=layers))


def test_blocks_that_feed_a_pyramid_are_spared():
    build = {
        "vit": lambda: vit(num_classes=0, features_only=True, out_indices=(1, 3)),
        "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", features_only=True, **SWIN),
        "nommer": lambda: timm.create_model("nommer_tiny", features_only=True, embed_dim=16, depths=(1, 2, 1, 2)),
    }
    chosen = {}
    for name, make in build.items():
        model = make()
        feeding = find_host(model).feeding
        attach(model, ContextBroadcast(layers="all", spare_pyramid=True))
        chosen[name] = [path for path, module in model.named_modules() if hasattr(module, "broadcast")]
        assert feeding
        assert not feeding & set(chosen[name])
    assert chosen["vit"] == ["model.blocks.0", "model.blocks.2"]
    assert chosen["swin"] == ["layers_2.blocks.0"]
    assert chosen["nommer"] == ["model.stages.1.blocks.0", "model.stages.3.blocks.0"]


def test_sparing_needs_to_know_the_pyramid_and_to_leave_something():
    with pytest.raises(HostError, match=r"feed a pyramid; build it with features_only=True .* layers="):
        attach(vit(), ContextBroadcast(spare_pyramid=True))
    model = vit(num_classes=0, features_only=True, out_indices=(3,))
    with pytest.raises(HostError, match="leaves ContextBroadcast no block"):
        attach(model, ContextBroadcast(layers=[3], spare_pyramid=True))


@pytest.mark.parametrize("position", ["attention", "both"])
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN), "attends within windows.*position='mlp'"),
        (
            lambda: MlpMixer(img_size=32, patch_size=8, embed_dim=24, num_blocks=2),
            "has no attention; choose position='mlp'",
        ),
    ],
    ids=["swin", "mixer"],
)
def test_attention_without_the_whole_image_is_refused(build, reason, position):
    model = build()
    with pytest.raises(HostError, match=reason):
        attach(model, ContextBroadcast(position=position))
    attach(model, ContextBroadcast())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 1, 24), 2), "build it with batch_first=True"),
        (lambda: bert(chunk_size_feed_forward=2), "chunk_size_feed_forward=2 splits texts"),
        (lambda: timm.create_model("mobilevit_xxs"), "folds the pixels"),
    ],
    ids=["sequence_first", "chunks", "mobilevit"],
)
def test_hosts_whose_tokens_do_not_pass_together_are_refused(build, reason):
    with pytest.raises(HostError, match=reason):
        attach(build(), ContextBroadcast())


def test_wrong_options_are_explained():
    with pytest.raises(ValueError, match=r"position='end' was given; allowed are 'mlp', 'mlp_mid'"):
        ContextBroadcast(position="end")
    with pytest.raises(ValueError, match=r"layers='lower' was given"):
        ContextBroadcast(layers="lower")
    with pytest.raises(ValueError, match=r"tokens='word' was given"):
        ContextBroadcast(tokens="word")
    with pytest.raises(HostError, match=r"tokens='text' chooses between"):
        attach(vit(), ContextBroadcast(tokens="text"))
    with pytest.raises(HostError, match=r"pass prefix_tokens=1"):
        attach(bert(), ContextBroadcast(class_token=False))


# What it costs


@pytest.mark.parametrize(
    ("position", "width"),
    [("mlp", 384), ("mlp_mid", 4 * 384), ("mlp_front", 384), ("attention", 384), ("both", 2 * 384)],
)
def test_added_parameters_of_vit_small(position, width):
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_224")
    before = sum(p.numel() for p in model.parameters())
    handle = attach(model, ContextBroadcast(position=position))
    assert handle.parameters() == []
    handle.detach()
    handle = attach(model, ContextBroadcast(position=position, scale=True, layers="all"))
    added = sum(p.numel() for p in model.parameters()) - before
    assert added == sum(p.numel() for p in handle.parameters()) == 12 * width
    if position == "mlp":
        assert round(100 * added / before, 2) == 0.02


def test_layer_decay_puts_the_scale_with_its_block():
    model = vit()
    attach(model, ContextBroadcast(scale=True))
    groups = timm.models.group_parameters(model, model.group_matcher())
    layer = {name: i for i, names in groups.items() for name in names}
    assert layer["blocks.3.broadcast.scale"] == layer["blocks.3.mlp.fc1.weight"]
