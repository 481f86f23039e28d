import pytest
import timm
import torch
from torch import nn

from saccade.models import cvt, glnet, nommer, t2t  # noqa: F401 (registers the backbones)
from saccade.plugins.tokens import HostError, find_host, guess_grid, read_tokens, require_blocks, split_tokens

COLUMN = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2}
SWIN = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (1, 1, 2), "num_heads": (1, 2, 2), "window_size": 4}
PIT = {"patch_size": 8, "stride": 4, "base_dims": [8, 8], "depth": [1, 2], "heads": [2, 4], "mlp_ratio": 2}
CONVNEXT = {"depths": (1, 1, 1, 2), "dims": (8, 8, 16, 16)}
NOMMER = {"embed_dim": 16, "depths": (1, 1, 1, 2)}
GLNET = {"dims": (8, 16, 16, 32), "depths": (1, 1, 2, 1), "num_heads": (1, 1, 2, 2)}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def vit(name="vit_tiny_patch16_224", **kwargs):
    return timm.create_model(name, **{**COLUMN, **kwargs})


@pytest.mark.parametrize(
    ("model", "feeding"),
    [
        (lambda: vit(), []),
        (lambda: vit(features_only=True, out_indices=(0, -2)), ["model.blocks.0", "model.blocks.2"]),
        (
            lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN),
            ["layers.0.blocks.0", "layers.1.blocks.0", "layers.2.blocks.1"],
        ),
        (
            lambda: timm.create_model("swin_tiny_patch4_window7_224", features_only=True, out_indices=(0, 2), **SWIN),
            ["layers_0.blocks.0", "layers_2.blocks.1"],
        ),
        (
            lambda: timm.create_model("convnext_atto", features_only=True, out_indices=(1, 3), **CONVNEXT),
            ["stages_1.blocks.0", "stages_3.blocks.1"],
        ),
        (
            lambda: timm.create_model("pit_ti_224", features_only=True, out_indices=(1,), img_size=32, **PIT),
            ["body.transformers.1.blocks.1"],
        ),
        (
            lambda: timm.create_model("nommer_tiny", features_only=True, out_indices=(0, 3), **NOMMER),
            ["model.stages.0.blocks.0", "model.stages.3.blocks.1"],
        ),
        (lambda: timm.create_model("glnet_4g", **GLNET), [f"stages.{i}.blocks.{[0, 0, 1, 0][i]}" for i in range(4)]),
        (
            lambda: timm.create_model("t2t_vit_7", features_only=True, img_size=32, depth=3, out_indices=(1,)),
            ["model.blocks.1"],
        ),
        (
            lambda: nn.ModuleDict({"encoder": vit(features_only=True, out_indices=(1,)), "head": nn.Linear(1, 1)}),
            ["encoder.model.blocks.1"],
        ),
    ],
    ids=["vit", "vit_fo", "swin", "swin_fo", "convnext_fo", "pit_fo", "nommer_fo", "glnet", "t2t_fo", "segmenter"],
)
def test_blocks_that_feed_a_pyramid(model, feeding):
    assert sorted(find_host(model()).feeding) == feeding


@pytest.mark.parametrize(
    ("build", "blocks", "inside", "final"),
    [
        (lambda: vit(), 4, 1, 1),
        (lambda: vit("deit_tiny_distilled_patch16_224"), 4, 2, 2),
        (lambda: vit("cait_xxs24_224"), 4, 0, 1),
        (lambda: vit("xcit_nano_12_p16_224"), 4, 0, 1),
        (lambda: vit("vit_relpos_small_patch16_224"), 4, 0, 0),
        (lambda: vit("eva02_tiny_patch14_224"), 4, 1, 1),
        (lambda: timm.create_model("t2t_vit_7", img_size=32, depth=2), 2, 1, 1),
        (lambda: timm.create_model("nommer_tiny", **NOMMER), 5, 1, 1),
        (lambda: timm.create_model("vit_base_patch16_siglip_224", **COLUMN), 4, 0, 0),
    ],
    ids=["vit", "distilled", "cait", "xcit", "relpos", "eva", "t2t", "nommer", "attention_pool"],
)
def test_blocks_and_prefix_tokens_are_counted(build, blocks, inside, final):
    host = find_host(build())
    assert (len(host.blocks), host.prefix_tokens, host.output_prefix) == (blocks, inside, final)


def test_class_token_of_one_stage_is_in_its_blocks_only():
    host = find_host(timm.create_model("nommer_tiny", **NOMMER))
    assert [block.prefix_tokens for block in host.blocks] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "cait_xxs24_224", "eva02_tiny_patch14_224"]
)
def test_tokens_of_a_column_are_forward_features_taken_apart(name):
    model = vit(name, img_size=(32, 48)).eval()
    x = torch.randn(2, 3, 32, 48)
    host = find_host(model)
    tokens = read_tokens(host, x)
    features = model.forward_features(x)
    assert torch.equal(torch.cat([tokens.prefix, tokens.words], dim=1), features)
    assert tokens.grid == (4, 6)
    assert tokens.as_map().shape == (2, 24, 4, 6)
    assert torch.equal(tokens.as_map()[:, :, 1, 2], tokens.words[:, 1 * 6 + 2])


@pytest.mark.parametrize(
    ("build", "grid"),
    [
        (lambda: timm.create_model("swin_tiny_patch4_window7_224", **{**SWIN, "img_size": (32, 64)}), (4, 8)),
        (lambda: timm.create_model("convnext_atto", **CONVNEXT), (1, 2)),
        (lambda: timm.create_model("resnet50", layers=(1, 1, 1, 1)), (1, 2)),
        (lambda: timm.create_model("nommer_tiny", **NOMMER), (1, 2)),
        (lambda: timm.create_model("glnet_4g", **GLNET), (1, 2)),
        (lambda: timm.create_model("cvt_13", depths=(1, 1, 1)), (2, 4)),
        (lambda: timm.create_model("t2t_vit_7", depth=1), (2, 4)),
        (lambda: vit(img_size=(32, 64), features_only=True), (4, 8)),
        (lambda: timm.create_model("convnext_atto", features_only=True, **CONVNEXT), (1, 2)),
    ],
    ids=["swin", "convnext", "resnet50", "nommer", "glnet", "cvt", "t2t", "vit_features", "convnext_features"],
)
def test_tokens_keep_a_wide_grid(build, grid):
    model = build().eval()
    tokens = read_tokens(find_host(model), torch.randn(2, 3, 32, 64))
    assert tokens.grid == grid
    assert tokens.words.shape[:2] == (2, grid[0] * grid[1])


def test_tokens_of_swin_are_its_map_in_row_order():
    model = timm.create_model("swin_tiny_patch4_window7_224", **SWIN).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(read_tokens(find_host(model), x).words[:, 5], model.forward_features(x)[:, 1, 1])


def test_tokens_of_pit_come_with_its_class_tokens():
    model = timm.create_model("pit_ti_distilled_224", img_size=32, **PIT).eval()
    x = torch.randn(2, 3, 32, 32)
    tokens = read_tokens(find_host(model), x)
    assert torch.equal(tokens.prefix, model.forward_features(x))
    assert tokens.words.shape == (2, 16, 32)
    assert tokens.grid == (4, 4)
    torch.testing.assert_close(tokens.words.mean(-1), model.norm.bias.mean().expand(2, 16), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["ViTModel", "ViTForImageClassification"])
@pytest.mark.parametrize("size", [(32, 32), (32, 48)], ids=str)
def test_tokens_of_hugging_face(kind, size):
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)(transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)).eval()
    tokens = read_tokens(find_host(model), torch.randn(2, 3, *size))
    assert tokens.prefix.shape == (2, 1, 16)
    assert tokens.grid == (size[0] // 8, size[1] // 8)


def test_words_are_not_read_from_images():
    transformers = pytest.importorskip("transformers")
    host = find_host(transformers.BertModel(transformers.BertConfig(vocab_size=50, **SMALL)))
    assert host.text
    with pytest.raises(HostError, match="reads text"):
        read_tokens(host, torch.randn(1, 3, 8, 8))


def test_position_table_is_no_vocabulary():
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPVisionConfig(image_size=32, patch_size=8, **SMALL)
    host = find_host(transformers.CLIPVisionModel(config))
    assert not host.text
    assert host.prefix_tokens == 1


def test_causal_hosts_are_told_from_others():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    assert find_host(transformers.GPT2Model(transformers.GPT2Config(**sizes))).causal
    assert not find_host(transformers.BertModel(transformers.BertConfig(vocab_size=50, **SMALL))).causal
    assert not find_host(vit()).causal


@pytest.mark.parametrize(
    ("build", "place", "dim", "channels_first"),
    [
        (lambda: vit(), "middle", 96, False),
        (lambda: vit("eva02_tiny_patch14_224", mlp_ratio=2), "middle", 48, False),
        (lambda: timm.create_model("convnext_atto", **CONVNEXT), "end", 16, True),
        (lambda: timm.create_model("convnext_tiny", **CONVNEXT), "end", 16, False),
        (lambda: timm.create_model("pvt_v2_b0"), "attention", 256, False),
    ],
    ids=["vit", "gated", "convolutional", "linear", "pvt"],
)
def test_width_and_layout_of_places(build, place, dim, channels_first):
    found = getattr(find_host(build()).blocks[-1], place)
    assert (found.dim, found.channels_first) == (dim, channels_first)


def test_named_blocks_are_taken_and_wrong_names_explained():
    model = vit()
    assert [b.path for b in find_host(model, blocks=["blocks.3", "blocks.1"]).blocks] == ["blocks.3", "blocks.1"]
    assert len(find_host(model, blocks="blocks").blocks) == 4
    with pytest.raises(HostError, match=r"'layers', which is not in VisionTransformer; its children are patch_embed"):
        find_host(model, blocks="layers")
    with pytest.raises(HostError, match=r"'blocks\.0\.attn', but no MLP was found in it: its children are qkv"):
        find_host(model, blocks=["blocks.0.attn"])
    with pytest.raises(HostError, match=r"layout='CHW' was given; allowed are NLC, NHWC, NCHW"):
        find_host(model, layout="CHW")


def test_host_without_blocks_is_told_what_was_looked_for():
    host = find_host(timm.create_model("resnet50", layers=(1, 1, 1, 1)))
    with pytest.raises(HostError, match=r"found none in resnet50\. Looked for .* mlp, .*blocks="):
        require_blocks(host, "ContextBroadcast")


def test_what_is_told_wins():
    host = find_host(vit(), prefix_tokens=3, grid=(2, 7), layout="NHWC")
    assert (host.prefix_tokens, host.output_prefix, host.grid, host.layout) == (3, 3, (2, 7), "NHWC")
    assert all(block.prefix_tokens == 3 for block in host.blocks)


def test_grid_is_guessed_by_the_images_shape():
    assert guess_grid(24, (64, 96)) == (4, 6)
    assert guess_grid(24, (96, 64)) == (6, 4)
    assert guess_grid(49, (97, 101)) == (7, 7)
    with pytest.raises(HostError, match=r"25 patch tokens of a 64x160 image .* prefix_tokens="):
        guess_grid(25, (64, 160))


def test_split_tokens_of_each_layout():
    x = torch.randn(2, 3, 4, 5)
    for layout, features in (("NCHW", x), ("NHWC", x.permute(0, 2, 3, 1))):
        tokens = split_tokens(features, layout=layout)
        assert torch.equal(tokens.as_map(), x)
    text = split_tokens(torch.randn(2, 7, 3), layout="NLC")
    with pytest.raises(HostError, match="no grid"):
        text.as_map()
