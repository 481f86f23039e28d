import math

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, export

from saccade.models.t2t import T2TViT, TokensToToken, extract_patches
from support.golden import case, cases, listen, relative_error, strided


def tiny(**kwargs) -> T2TViT:
    torch.manual_seed(0)
    options = {"img_size": 64, "embed_dim": 24, "depth": 2, "num_heads": 3, "token_dim": 8, "num_classes": 5}
    return T2TViT(**(options | kwargs))


def published(c, **kwargs) -> T2TViT:
    model = timm.create_model("t2t_vit_14", img_size=c.record["constructor"]["img_size"], **kwargs)
    model.load_state_dict(c.state_dict())
    return model.eval()


@pytest.mark.parametrize("c", cases("t2t_vit_14"), ids=lambda c: c.id)
def test_published_logits_in_float32(c):
    with torch.inference_mode():
        assert relative_error(published(c)(c.input()), c.logits) < 1e-4


def test_published_logits_and_features_in_float64():
    c = case("t2t_vit_14", "192")
    model = published(c).double()
    ours = {
        "t2t.attn1": "patch_embed.split1.performer",
        "t2t.attn2": "patch_embed.split2.performer",
        "b0": "blocks.0",
        "b7": "blocks.7",
        "b13": "blocks.13",
        "norm": "norm",
    }
    heard = listen(model, "patch_embed", *ours.values())
    with torch.inference_mode():
        assert relative_error(model(c.input().double()), c.logits) < 1e-9
    for tap, name in ours.items():
        assert relative_error(strided(heard[name]), c.feature(tap)) < 1e-9, tap
    tokens = heard["patch_embed"].flatten(2).transpose(1, 2)
    assert relative_error(strided(tokens), c.feature("t2t.out")) < 1e-9


@pytest.mark.parametrize(
    ("name", "millions", "gmacs"),
    [("t2t_vit_7", 4.3, 1.1), ("t2t_vit_12", 6.9, 1.8), ("t2t_vit_14", 21.5, 4.8), ("t2t_vit_24", 64.1, 13.8)],
)
def test_sizes_are_the_papers(name, millions, gmacs):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = timm.create_model(name).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    count = sum(p.numel() for p in model.parameters()) + model.pos_embed.numel()  # the papers count the frozen table
    assert count / 1e6 == pytest.approx(millions, abs=0.06)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, rel=0.05)


@pytest.mark.parametrize("size", [(56, 56), (57, 31), (9, 20), (3, 4)])
@pytest.mark.parametrize(("patch", "stride", "padding"), [(7, 4, 2), (3, 2, 1)])
def test_patches_are_those_of_unfold_with_gradients(size, patch, stride, padding):
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    got, grid = extract_patches(x, patch, stride=stride, padding=padding)
    want = F.unfold(x, patch, stride=stride, padding=padding).transpose(1, 2)
    assert torch.equal(got, want)
    assert math.prod(grid) == want.shape[1]
    weights = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad((got * weights).sum(), x), torch.autograd.grad((want * weights).sum(), x)
    )


def test_patches_keep_no_more_memory_than_unfold():
    x = torch.randn(1, 8, 28, 28, requires_grad=True)
    norm, linear = nn.LayerNorm(72), nn.Linear(72, 24)

    def saved(tokens) -> int:
        sizes: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            kept.append(t)
            return t

        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            linear(norm(tokens()))
        return sum(sizes.values())

    ours = saved(lambda: extract_patches(x, 3, stride=2, padding=1)[0])
    assert ours <= saved(lambda: F.unfold(x, 3, stride=2, padding=1).transpose(1, 2))


def direct_tokens(embed: TokensToToken, x: Tensor) -> Tensor:
    """The published steps with `F.unfold`, on maps of any proportion."""

    def split(x: Tensor, patch: int, stride: int, padding: int) -> tuple[Tensor, tuple[int, int]]:
        sides = tuple((side + 2 * padding - patch) // stride + 1 for side in x.shape[2:])
        return F.unfold(x, patch, stride=stride, padding=padding).transpose(1, 2), sides

    tokens, grid = split(x, 7, 4, 2)
    x = embed.split1.performer(tokens).transpose(1, 2).reshape(len(x), -1, *grid)
    tokens, grid = split(x, 3, 2, 1)
    x = embed.split2.performer(tokens).transpose(1, 2).reshape(len(x), -1, *grid)
    tokens, grid = split(x, 3, 2, 1)
    return embed.project(tokens).transpose(1, 2).reshape(len(x), -1, *grid)


@pytest.mark.parametrize("size", [(64, 64), (48, 80), (33, 20), (75, 130), (3, 7)])
def test_embedding_follows_the_published_steps_at_any_size(size):
    embed = tiny().patch_embed.double().eval()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    got = embed(x)
    torch.testing.assert_close(got, direct_tokens(embed, x), rtol=0, atol=1e-13)
    assert got.shape[2:] == embed.grid(*size)


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (40, 2)])
def test_images_too_small_for_a_patch_are_padded_with_zeros(size):
    model = tiny().eval()
    x = torch.randn(1, 3, *size)
    padded = torch.zeros(1, 3, max(3, size[0]), max(3, size[1]))
    padded[..., : size[0], : size[1]] = x
    assert torch.equal(model(x), model(padded))
    assert model.patch_embed(x).shape[2:] == model.patch_embed.grid(*size)


@pytest.mark.parametrize("size", [(20, 20), (32, 32), (33, 97), (160, 64)])
def test_classifies_any_size(size):
    assert tiny().eval()(torch.randn(1, 3, *size)).isfinite().all()


def test_set_input_size_gives_the_same_answer_as_resampling_in_forward():
    model, x = tiny().eval(), torch.randn(1, 3, 96, 48)
    before = model(x)
    model.set_input_size((96, 48))
    assert model.grid_size == (6, 3)
    torch.testing.assert_close(model(x), before)


def test_starts_as_published():
    model = tiny(embed_dim=96, token_dim=64)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.15), name
            assert module.bias is None or not module.bias.any(), name
        elif isinstance(module, nn.LayerNorm):
            assert module.eps == 1e-5
            assert (module.weight == 1).all(), name
            assert not module.bias.any(), name
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.3)
    assert model.blocks[0].attn.qkv.bias is None
    assert isinstance(model.blocks[0].drop_path1, nn.Identity)
    assert model.patch_embed.split1.performer.drop.p == 0.1
    assert "pos_embed" not in dict(model.named_parameters())


def test_pooling_reads_what_it_says():
    model, x = tiny().eval(), torch.randn(2, 3, 64, 64)
    tokens = model.forward_features(x)
    assert torch.equal(model.forward_head(tokens, pre_logits=True), tokens[:, 0])
    model.reset_classifier(3, "avg")
    assert not model.head.bias.any()  # a new classifier starts like the first
    assert torch.equal(model.forward_head(tokens, pre_logits=True), tokens[:, 1:].mean(1))
    assert model(x).shape == (2, 3)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), tokens)


def test_options_reach_their_layers():
    model = tiny(drop_rate=0.2, attn_drop_rate=0.3, drop_path_rate=0.4, token_drop_rate=0.5, mlp_ratio=2.5)
    block = model.blocks[1]
    assert (model.pos_drop.p, block.attn.proj_drop.p, block.mlp.drop1.p) == (0.2, 0.2, 0.2)
    assert block.attn.attn_drop.p == 0.3
    assert isinstance(model.blocks[0].drop_path1, nn.Identity)
    assert block.drop_path1.drop_prob == pytest.approx(0.4)
    assert model.patch_embed.split2.performer.mlp.drop2.p == 0.5
    assert block.mlp.fc1.out_features == 60


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"global_pool": "max"}, "global_pool='max' was given; allowed are 'token', 'avg' and ''"),
        ({"global_pool": ""}, "global_pool='' was given with num_classes=5"),
        ({"num_heads": 5}, "embed_dim=24 is not divisible by num_heads=5"),
    ],
)
def test_bad_values_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        tiny(**kwargs)


def test_convert_renames_drops_the_localization_head_and_passes_the_unknown():
    c = case("t2t_vit_14", "224")
    theirs = c.state_dict() | {"surprise": torch.zeros(1)}
    before = dict(theirs)
    with torch.device("meta"):
        model = timm.create_model("t2t_vit_14")
    ours = model.convert(theirs)
    assert set(ours) == set(model.state_dict()) | {"surprise"}
    assert theirs.keys() == before.keys()
    assert all(theirs[key] is before[key] for key in before)
    again = model.convert(ours)
    assert again.keys() == ours.keys()
    assert all(again[key] is ours[key] for key in ours)


def test_a_published_table_is_resampled_to_a_grid_of_as_many_tokens():
    theirs = {"tokens_to_token.project.bias": torch.zeros(24), "pos_embed": torch.randn(1, 17, 24)}
    wide = tiny(img_size=(32, 128))  # 2 x 8, where the table is 4 x 4
    table = wide.convert(theirs)["pos_embed"]
    assert table.shape == wide.pos_embed.shape == theirs["pos_embed"].shape
    assert torch.equal(table[:, 0], theirs["pos_embed"][:, 0])
    assert not torch.allclose(table, theirs["pos_embed"])
    assert torch.equal(tiny().convert(theirs)["pos_embed"], theirs["pos_embed"])


def test_checkpointing_gives_the_same_gradients_with_dropout_and_drop_path():
    def gradients(recompute: bool) -> list[Tensor]:
        model = tiny(drop_path_rate=0.5, token_drop_rate=0.3).train()
        model.set_grad_checkpointing(recompute)
        assert model.patch_embed.grad_checkpointing is recompute
        torch.manual_seed(1)
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    x = torch.randn(4, 3, 48, 48)
    torch.testing.assert_close(gradients(True), gradients(False), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_to_single(dtype):
    model, x = tiny().eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        want = model(x)
        with torch.autocast("cpu", dtype):
            assert relative_error(model(x), want) < 0.03
        assert relative_error(model.to(dtype)(x.to(dtype)), want) < 0.03


@pytest.mark.parametrize(
    ("backend", "training"),
    [
        ("aot_eager", True),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("eager", True), ("eager", False))),
        pytest.param("aot_eager", False, marks=pytest.mark.slow),  # as in tests/contract/test_backbones.py
    ],
)
def test_compiles_as_one_graph(backend, training):
    model, x = tiny(depth=1).train(training), torch.randn(2, 3, 64, 64)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.manual_seed(1)
    got = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, model(x))
    got.sum().backward()


def test_exported_program_serves_other_sizes():
    model = tiny(depth=1).eval()
    sides = {2: Dim("h", min=20, max=2048), 3: Dim("w", min=20, max=2048)}
    program = export(model, (torch.randn(2, 3, 64, 80),), dynamic_shapes=({0: Dim("b", min=1, max=64), **sides},))
    for shape in [(1, 3, 37, 51), (3, 3, 224, 100), (1, 3, 20, 21), (2, 3, 64, 80)]:
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-6)


def test_features_only_gives_maps_of_the_token_grid():
    net = timm.create_model("t2t_vit_7", depth=3, embed_dim=32, features_only=True, out_indices=(0, 1))
    assert net.feature_info.reduction() == [16, 16]
    assert len(net.model.blocks) == 2
    assert [tuple(f.shape) for f in net.eval()(torch.randn(1, 3, 64, 100))] == [(1, 32, 4, 7)] * 2  # 100 -> 25, 13, 7
