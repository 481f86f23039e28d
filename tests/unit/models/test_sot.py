from typing import Any

import pytest
import torch
from timm.models._features_fx import create_feature_extractor, get_graph_node_names
from torch import Tensor
from torch.export import Dim

from saccade.layers.token_embed_ablations import TOKEN_EMBEDS
from support.golden import relative_error
from support.small_sot import on_meta, small


def images(*size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


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
