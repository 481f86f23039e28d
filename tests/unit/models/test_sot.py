from typing import Any

import pytest
import timm
import torch
from timm.models._features_fx import create_feature_extractor, get_graph_node_names
from torch import Tensor
from torch.export import Dim
from torch.utils.flop_counter import FlopCounterMode

from saccade.layers.token_embed_ablations import TOKEN_EMBEDS
from saccade.models.sot import SoT
from support.golden import Case, case, cases, relative_error, strided

SMALL: dict[str, Any] = {"embed_dim": 16, "depth": 2, "num_heads": 2, "cov_heads": 2, "cov_dim": 3, "num_classes": 5}


def small(**options: Any) -> SoT:
    torch.manual_seed(0)
    return timm.create_model("sot_tiny", **{**SMALL, "img_size": 64, **options})


def images(*size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


def published(run: Case) -> SoT:
    name, norm = run.name.removesuffix("_densebn"), run.name.endswith("_densebn")
    model = timm.create_model(name, img_size=run.record["constructor"]["img_size"], dense_norm=norm)
    model.load_state_dict(run.state_dict())
    return model.eval()


def count(model: SoT) -> int:
    return sum(p.numel() for p in model.parameters())


def on_meta(name: str, **options: Any) -> SoT:
    with torch.device("meta"):
        return timm.create_model(name, **options)


GOLDEN = [run for name in ("sot_7", "sot_tiny", "sot_tiny_densebn", "sot_base") for run in cases(name)]


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        pytest.param(
            run,
            dtype,
            id=f"{run.name}-{run.id}-{str(dtype).removeprefix('torch.')}",
            marks=[pytest.mark.slow] if run.name == "sot_base" and (run.id, dtype) != ("112", torch.float32) else [],
        )
        for run in GOLDEN
        for dtype in (torch.float32, torch.float64)
    ],
)
def test_published_logits_are_reproduced(run: Case, dtype: torch.dtype) -> None:
    with torch.no_grad():
        logits = published(run).to(dtype)(run.input().to(dtype))
    assert relative_error(logits, run.logits) < (1e-9 if dtype == torch.float64 else 1e-4)


def test_published_features_are_reproduced_inside_the_network() -> None:
    run = case("sot_7", "112")
    model = published(run).double()
    names = {"stem": "patch_embed.stem", "stage1": "patch_embed.blocks.1", "stage5": "patch_embed.blocks.5"}
    names |= {"b0": "blocks.0", "b6": "blocks.6", "norm": "norm", "wr": "head.pool.proj", "svpn": "head.pool.norm"}
    names |= {"mgcrp": "head.pool", "visual_fc": "head.word_fc", "cls_fc": "head.class_fc"}
    heard: dict[str, Tensor] = {}
    for tap, path in names.items():
        model.get_submodule(path).register_forward_hook(lambda _m, _i, out, tap=tap: heard.update({tap: out}))
    with torch.no_grad():
        model(run.input().double())
    for tap, out in heard.items():
        assert relative_error(strided(out), run.feature(tap)) < 1e-9, tap
    assert heard.keys() == names.keys()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("sot_7", 5_443_422), ("sot_tiny", 7_983_550), ("sot_small", 27_011_000), ("sot_base", 76_774_966)],
)
def test_parameters_of_the_published_models(name: str, parameters: int) -> None:
    assert count(on_meta(name)) == pytest.approx(parameters, abs=500 if name == "sot_small" else 0)


@pytest.mark.parametrize(
    ("settings", "millions"),
    [
        # table 3a: class token only, by token embedding
        ({"pooling": "none", "token_embed": "linear"}, 3.992),
        ({"pooling": "none", "token_embed": "resnet"}, 4.292),
        ({"pooling": "none", "token_embed": "inception"}, 4.083),
        ({"pooling": "none", "token_embed": "densenet"}, 4.223),
        ({"pooling": "none", "token_embed": "nonlocal"}, 4.198),
        ({"pooling": "fc"}, 5.576),
        # table 3b: the published code counts a class-token classifier of 0.257 M that these two fusions do not use
        ({"fusion": "aggr_all", "pooling": "gap"}, 4.480 - 0.257),
        ({"fusion": "aggr_all", "pooling": "gcp"}, 5.413 - 0.257),
        ({"fusion": "aggr_all"}, 5.443 - 0.257),
        ({"fusion": "concat", "pooling": "gap"}, 4.736 - 0.257),
        ({"fusion": "concat", "pooling": "gcp"}, 5.669 - 0.257),
        ({"fusion": "concat"}, 5.699 - 0.257),
        ({"fusion": "sum", "pooling": "gap"}, 4.480),
        ({"fusion": "sum", "pooling": "gcp"}, 5.413),
        ({"fusion": "late"}, 5.443),
        ({"embed_dim": 240, "mlp_ratio": 2.5}, 5.381),
        ({"embed_dim": 240, "mlp_ratio": 2.5, "pooling": "none"}, 4.164),
    ],
)
def test_parameters_of_the_ablations(settings: dict[str, Any], millions: float) -> None:
    assert count(on_meta("sot_7", **settings)) / 1e6 == pytest.approx(millions, abs=0.0011)


@pytest.mark.parametrize(("name", "size", "gmacs"), [("sot_7", 112, 1.2006), ("sot_tiny", 224, 2.7527)])
def test_work_of_the_published_models(name: str, size: int, gmacs: float) -> None:
    model = on_meta(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, size, size, device="meta"))
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=1e-3)


class TestSizes:
    @pytest.mark.parametrize(
        ("img_size", "stride"), [(112, 8), (223, 8), ((128, 160), 8), (224, 16), (96, 16), (384, 16), ((112, 224), 16)]
    )
    def test_published_strides(self, img_size: Any, stride: int) -> None:
        model = on_meta("sot_tiny", img_size=img_size)
        assert model.patch_embed.stride == stride
        assert model.feature_info[0]["reduction"] == stride

    @pytest.mark.parametrize(("img_size", "stride"), [(112, 8), (224, 16), (336, 24), (20, 1)])
    def test_published_patches_of_the_linear_embedding(self, img_size: int, stride: int) -> None:
        assert on_meta("sot_tiny", img_size=img_size, token_embed="linear").patch_embed.stride == stride

    def test_patch_size_overrides(self) -> None:
        assert small(patch_size=8).patch_embed.stride == 8

    @pytest.mark.parametrize("kind", TOKEN_EMBEDS)
    @pytest.mark.parametrize("size", [(64, 64), (57, 101), (33, 32), (20, 20), (7, 40)])
    def test_any_size_gives_logits(self, kind: str, size: tuple[int, int]) -> None:
        model = small(token_embed=kind).eval()
        with torch.no_grad():
            assert model(images(*size, batch=1)).isfinite().all()

    def test_prepared_size_equals_resampling_on_the_fly(self) -> None:
        model = small().eval()
        x = images(90, 70)
        with torch.no_grad():
            want = model(x)
            model.set_input_size((90, 70))
            assert model.grid_size == model.patch_embed.grid(90, 70)
            assert torch.allclose(model(x), want)

    def test_words_are_positioned(self) -> None:
        model = small().eval()
        x = images(64, 64)
        with torch.no_grad():
            assert not torch.allclose(model(x), model(x.flip(2)), atol=1e-5)


class TestContract:
    def test_intermediates_are_maps_and_sequences(self) -> None:
        model = small().eval()
        x = images(64, 48)
        with torch.no_grad():
            final, maps = model.forward_intermediates(x, indices=[0, 1], norm=True)
            pairs = model.forward_intermediates(
                x, indices=1, norm=True, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
            )
        assert [tuple(m.shape) for m in maps] == [(2, 16, 4, 3)] * 2
        assert torch.equal(final[:, 1:].transpose(1, 2).unflatten(2, (4, 3)), maps[1])
        assert torch.equal(torch.cat(pairs[0][::-1], dim=1), final)

    def test_features_only_leaves_no_head_behind(self) -> None:
        model = small(features_only=True, out_indices=(0, 1))
        assert [tuple(m.shape) for m in model(images(64, 64))] == [(2, 16, 4, 4)] * 2
        assert model.feature_info.reduction() == [16, 16]
        assert not [name for name, _ in model.named_parameters() if "head" in name]

    def test_pruning_drops_what_is_not_needed(self) -> None:
        model = small().eval()
        x = images(64, 64)
        with torch.no_grad():
            want = model.forward_intermediates(x, indices=[0], intermediates_only=True)[0]
            assert model.prune_intermediate_layers([0], prune_norm=True) == [0]
            assert len(model.blocks) == 1
            assert torch.equal(model.forward_intermediates(x, indices=[0], intermediates_only=True)[0], want)

    def test_classifier_can_be_replaced_and_removed(self) -> None:
        model = small().eval()
        tokens = model.forward_features(images(64, 64))
        assert model.head_hidden_size == 16 + 18
        model.reset_classifier(7)
        assert model.num_classes == 7
        assert model.forward_head(tokens).shape == (2, 7)
        assert model.forward_head(tokens, pre_logits=True).shape == (2, 34)
        model.reset_classifier(0)
        assert torch.equal(model.forward_head(tokens), model.forward_head(tokens, pre_logits=True))
        model.reset_classifier(0, "")
        assert torch.equal(model.forward_head(tokens), tokens)
        assert model.head_hidden_size == 16
        model.reset_classifier(3)
        assert model.forward_head(tokens).shape == (2, 3)
        assert model.get_classifier() is model.head

    def test_tokens_come_out_when_nothing_is_to_be_pooled(self) -> None:
        model = small(num_classes=0, global_pool="").eval()
        assert model(images(64, 64)).shape == (2, 17, 16)

    def test_named_layers_of_the_configuration_exist(self) -> None:
        model = small()
        names = (*model.default_cfg["classifier"], model.default_cfg["first_conv"])
        assert {f"{name}.weight" for name in names} <= dict(model.named_parameters()).keys()

    def test_every_parameter_has_a_layer(self) -> None:
        from timm.optim import param_groups_layer_decay

        groups = param_groups_layer_decay(small(), layer_decay=0.5)
        scales = {g["lr_scale"] for g in groups}
        assert len(scales) == 1 + 2 + 1

    def test_recomputation_gives_the_same_gradients(self) -> None:
        x = images(64, 64)
        grads = []
        for recompute in (False, True):
            model = small(drop_path_rate=0.3, rep_drop=0.2).train()
            model.set_grad_checkpointing(recompute)
            torch.manual_seed(1)
            model(x).square().sum().backward()
            grads.append([p.grad for p in model.parameters()])
        for a, b in zip(*grads, strict=True):
            assert torch.equal(a, b)

    def test_all_parameters_are_trained(self) -> None:
        model = small(token_embed="resnet")
        model(images(64, 64)).square().sum().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []

    def test_channels_last_changes_nothing(self) -> None:
        model = small().eval()
        x = images(64, 64)
        with torch.no_grad():
            want = model(x)
            got = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
        assert relative_error(got, want) < 1e-4

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_gives_finite_logits_and_gradients(self, dtype: torch.dtype) -> None:
        model = small(depth=1)
        x = images(32, 32)
        with torch.autocast("cpu", dtype=dtype):
            model(x).float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        with torch.no_grad():
            want = model.eval()(x)
            assert relative_error(model.to(dtype)(x.to(dtype)).float(), want) < 0.1

    def test_starts_as_published(self) -> None:
        model = small(embed_dim=256, num_heads=4)
        assert model.cls_token.detach().std().item() == pytest.approx(0.02, rel=0.3)
        for block in model.blocks:
            assert block.attn.qkv.weight.detach().std().item() == pytest.approx(0.02, rel=0.05)
            assert not block.mlp.fc1.bias.any()
        assert model.patch_embed.proj.bias.any()  # convolutions keep PyTorch's start

    @pytest.mark.parametrize(
        ("mode", "kind"), [pytest.param("train", "densenet", marks=pytest.mark.slow), ("eval", "linear")]
    )
    def test_compiles_whole(self, mode: str, kind: str) -> None:
        torch._dynamo.reset()
        model = small(depth=1, token_embed=kind)
        model.train(mode == "train")
        x = images(32, 32)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        got = compiled(x)
        assert torch.allclose(got, model(x), atol=1e-6)
        if mode == "train":
            got.square().sum().backward()
            assert model.head.pool.norm.start.grad.any()

    @pytest.mark.parametrize("kind", ["densenet", "linear"])
    def test_a_traced_graph_gives_the_same_bits(self, kind: str) -> None:
        model = small(depth=1, token_embed=kind).eval()
        last = get_graph_node_names(model)[1][-1]
        x = images(32, 32)
        with torch.no_grad():
            assert torch.equal(create_feature_extractor(model, [last])(x)[last], model(x))

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"token_embed": "nonlocal", "normalization": "svpn_exact"}])
    def test_exports_with_dynamic_batch_and_size(self, options: dict[str, Any]) -> None:
        model = small(depth=1, **options).eval()
        sizes = {0: Dim("b", min=1, max=64), 2: Dim("h", min=32, max=512), 3: Dim("w", min=32, max=512)}
        program = torch.export.export(model, (images(80, 96),), dynamic_shapes=(sizes,)).module()
        for size, batch in (((57, 101), 1), ((32, 43), 3), ((64, 64), 2)):
            x = images(*size, batch=batch)
            with torch.no_grad():
                assert torch.allclose(program(x), model(x), atol=1e-6)


class TestOptions:
    def test_late_fusion_gives_both_logits_and_their_sum(self) -> None:
        model = small(fusion="late").eval()
        x = images(64, 64)
        tokens = model.forward_features(x)
        token, words = model.head.logits_pair(tokens)
        assert torch.allclose(model(x), token + words)
        (token.logsumexp(-1) + words.logsumexp(-1)).sum().backward()
        assert model.head.class_fc.weight.grad.any()
        assert model.head.word_fc.weight.grad.any()

    @pytest.mark.parametrize(
        "options",
        [
            {"centring": "channel"},
            {"centring": "none"},
            {"normalization": "none"},
            {"num_sv": "none", "num_iter": 2},
            {"normalization": "svpn_exact"},
            {"num_sv": 2, "num_iter": 3},
            {"alpha": 0.3},
            {"start": "ones"},
            {"fusion": "concat"},
            {"pooling": "gcp"},
        ],
    )
    def test_options_reach_the_head(self, options: dict[str, Any]) -> None:
        x = images(64, 64)
        plain, changed = small().eval(), small(**options).eval()
        changed.load_state_dict(
            {k: v for k, v in plain.state_dict().items() if v.shape == changed.state_dict().get(k, v[..., None]).shape},
            strict=False,
        )
        tokens = plain.forward_features(x)
        assert torch.equal(tokens, changed.forward_features(x))
        assert not torch.allclose(plain.forward_head(tokens), changed.forward_head(tokens), atol=1e-7)

    def test_dropout_of_the_larger_models(self) -> None:
        assert [on_meta(f"sot_{n}").head.pool.drop.p for n in ("7", "tiny", "small", "base")] == [0, 0, 0.5, 0.7]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"token_embed": "mlp"}, "allowed are 'densenet'"),
            ({"token_embed": "resnet", "dense_norm": True}, "only works with 'densenet'"),
            ({"patch_size": 32}, "supports 4, 8 and 16"),
            ({"num_heads": 3}, "choose a multiple"),
            ({"fusion": "mean"}, "allowed are 'sum'"),
        ],
    )
    def test_refuses_bad_values(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            small(**options)

    def test_refuses_other_pooling_of_the_classifier(self) -> None:
        with pytest.raises(ValueError, match="SoT pools in its head"):
            small().reset_classifier(5, "avg")
        with pytest.raises(ValueError, match="does not have two classifiers"):
            small(fusion="concat").head.logits_pair(torch.zeros(1, 5, 16))


class TestConvert:
    @pytest.fixture
    def official(self) -> dict[str, Tensor]:
        return case("sot_7", "112").state_dict()

    def test_leaves_its_input_and_unknown_entries_alone(self, official: dict[str, Tensor]) -> None:
        given = {**official, "visual_tokens.extra": torch.ones(1), "strange": torch.ones(1)}
        before = dict(given)
        out = on_meta("sot_7").convert(given)
        assert given == before
        assert {"visual_tokens.extra", "strange"} <= out.keys()
        assert out.keys() - {"visual_tokens.extra", "strange"} == on_meta("sot_7").state_dict().keys()

    def test_our_own_layout_comes_back_as_it_is(self) -> None:
        model = small()
        ours = model.state_dict()
        assert model.convert(ours) == ours

    @pytest.mark.parametrize("fusion", ["concat", "aggr_all"])
    def test_unused_classifier_is_dropped(self, official: dict[str, Tensor], fusion: str) -> None:
        out = on_meta("sot_7", fusion=fusion).convert(official)
        assert not [key for key in out if "class_fc" in key]

    def test_position_table_is_fitted_to_another_grid(self, official: dict[str, Tensor]) -> None:
        model = on_meta("sot_7", img_size=(160, 128))
        out = model.convert(official)
        assert out["pos_embed"].shape == model.pos_embed.shape
        assert torch.equal(out["pos_embed"][:, 0], official["pos_embed"][:, 0])

    def test_same_grid_at_twice_the_size_keeps_the_table(self, official: dict[str, Tensor]) -> None:
        assert on_meta("sot_7", img_size=224).convert(official)["pos_embed"] is official["pos_embed"]
