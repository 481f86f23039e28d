import copy

import pytest
import timm
import torch
from torch import Tensor
from torch.export import Dim

import saccade.models.nommer  # noqa: F401  (registers the models)
from saccade.layers.nominate import Synergy, nominate
from saccade.models.nommer import Merge
from support.small_nommer import SMALL, small


def images(*size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [(64, 64), (33, 70), (20, 20), (100, 57), (1, 9)])
def test_any_size_gives_maps_of_rounded_up_strides(size):
    model = small().eval()
    with torch.no_grad():
        final, maps = model.forward_intermediates(images(*size, batch=1))
        logits = model(images(*size, batch=1))
    for stride, width, found in zip((4, 8, 16, 32), (8, 16, 32, 64), maps, strict=True):
        assert found.shape == (1, width, -(-size[0] // stride), -(-size[1] // stride))
    assert final.shape == (1, 2 * 64, *maps[3].shape[2:])
    assert torch.allclose(model.forward_head(final), logits)
    assert logits.isfinite().all()


def test_last_row_of_an_odd_map_is_pooled_by_itself():
    merge = Merge(2, 4)
    x = torch.randn(1, 2, 5, 4)
    want = torch.nn.functional.max_pool2d(merge.conv(x), 2, ceil_mode=True)
    assert torch.allclose(merge(x), merge.norm(want.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def test_last_map_is_the_normalised_word_tokens():
    model = small().eval()
    with torch.no_grad():
        final, maps = model.forward_intermediates(images(64, 96), norm=True)
        bare = model.forward_intermediates(images(64, 96), indices=[3], intermediates_only=True)[0]
    assert torch.equal(maps[3], final[:, :64])
    assert torch.allclose(model.norm(bare.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), maps[3], atol=1e-6)


def test_features_only_prunes_what_no_map_needs():
    model = timm.create_model("nommer_tiny", features_only=True, out_indices=(0, 2), **SMALL)
    assert model.feature_info.reduction() == [4, 16]
    maps = model(images(64, 40))
    assert [tuple(m.shape) for m in maps] == [(2, 8, 16, 10), (2, 32, 4, 3)]
    sum(m.sum() for m in maps).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_map_that_is_not_pooled_cannot_be_classified():
    with pytest.raises(ValueError, match="use 'token' or 'avg'"):
        small(global_pool="")


@pytest.mark.parametrize("pool", ["token", "avg", ""])
def test_pooling_and_classifier(pool):
    model = small(global_pool=pool, **({} if pool else {"num_classes": 0})).eval()
    features = model.forward_features(images(64, 64))
    assert features.shape == (2, 2 * 64, 2, 2)
    want = {"token": features[:, 64:, 0, 0], "avg": features[:, :64].mean((2, 3)), "": features}[pool]
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), want)
    torch.testing.assert_close(model(images(64, 64)), model.get_classifier()(want))
    model.reset_classifier(0, "avg")
    torch.testing.assert_close(model(images(64, 64)), features[:, :64].mean((2, 3)))


def test_every_place_carries_the_class_token():
    model = small().eval()
    with torch.no_grad():
        tokens, grid = run_stages(model, images(64, 96))
        features = model.forward_features(images(64, 96))
    tokens = model.norm(tokens)
    assert torch.equal(features[:, :64].flatten(2).mT, tokens[:, 1:])
    assert torch.equal(features[:, 64:], tokens[:, 0, :, None, None].expand(-1, -1, *grid))


def run_stages(model, x):
    x = model.stem(x)
    for stage in model.stages:
        x = stage(x)
    return x


def test_drop_path_rises_linearly_over_all_blocks():
    model = small(depths=(2, 1, 1, 1), drop_path_rate=0.4)
    rates = [block.drop_path.drop_prob for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_nominations_can_be_heard_and_are_one_hot():
    model = small(depths=(2, 1, 1, 1)).eval()
    taps = {n: m for n, m in model.named_modules() if n.endswith((".nomination", ".scores"))}
    assert len(taps) == 6
    heard = {}
    for name, tap in taps.items():
        tap.register_forward_hook(lambda _, __, y, name=name: heard.update({name: y}))
    model(images(40, 64))
    first = "stages.0.blocks.0.mixer.nominator."
    assert heard[first + "nomination"].shape == heard[first + "scores"].shape == (2, 10, 16, 3)
    assert torch.equal(heard[first + "nomination"], nominate(heard[first + "scores"]))


def test_training_is_noisy_and_reaches_every_parameter():
    model = small().train()
    torch.manual_seed(1)
    first = model(images(64, 64))
    assert not torch.equal(first, model(images(64, 64)))
    first.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_soft_nomination_is_not_noisy():
    model = small(nomination="soft", temperature=0.5).train()
    assert torch.equal(model(images(64, 64)), model(images(64, 64)))
    assert all(m.temperature == 0.5 for m in model.modules() if hasattr(m, "temperature"))


def test_synergy_in_every_stage():
    model = small(synergistic=True).eval()
    mixers = [block.mixer for stage in model.stages for block in stage.blocks]
    assert all(isinstance(mixer, Synergy) for mixer in mixers)
    assert [mixer.dct.block_size for mixer in mixers] == [8, 4, 2, 1]
    x = images(64, 64).requires_grad_()
    model(x).sum().backward()  # the class token reads the image
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("names", [("cnn",), "window", ("Global",), ("window", "CNN"), ["global", "cnn", "window"]])
def test_candidates_may_be_any_subset_in_any_order_and_case(names):
    model = small(candidates=names).eval()
    given = {name.lower() for name in ([names] if isinstance(names, str) else names)}
    mixer = model.stages[0].blocks[0].mixer
    found = {n for n, m in (("cnn", mixer.cnn), ("window", mixer.window), ("global", mixer.dct)) if m is not None}
    assert found == given
    assert (mixer.nominator is None) == (len(given) == 1)
    assert model(images(33, 40)).isfinite().all()


def test_options_reach_their_layers():
    model = small(window_size=5, dct_sizes=(4, 2, 1, 1), cnn_reduction=4, mlp_ratios=3)
    mixer = model.stages[0].blocks[0].mixer
    assert mixer.window.relative_position_bias_table.shape[0] == 81
    assert mixer.dct.block_size == 4
    assert mixer.cnn.conv1.out_channels == 2
    assert model.stages[3].blocks[0].mlp.fc1.out_features == 192


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": ()}, "at most once"),
        ({"candidates": ("cnn", "cnn")}, "at most once"),
        ({"candidates": ("conv",)}, "cnn, window, global"),
        ({"nomination": "gumbel"}, "'hard', 'soft'"),
        ({"global_pool": "max"}, "'token', 'avg'"),
        ({"dct_sizes": (8, 4)}, "dct_sizes=.* has 2 values"),
        ({"num_heads": (3, 2, 2, 2)}, "num_heads=3 does not divide dim=8"),
        ({"embed_dim": 12}, "not a multiple of the 8 groups"),
        ({"synergistic": True, "candidates": ("cnn", "window")}, "never sees the image"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_without_a_global_candidate_the_mean_is_classified():
    model = small(synergistic=True, candidates=("cnn", "window"), global_pool="avg").eval()
    x = images(64, 64).requires_grad_()
    model(x).sum().backward()
    assert x.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="add 'global'"):
        model.reset_classifier(3, "token")


def test_set_input_size_resamples_once():
    model = small().eval()
    want = model(images(96, 128))
    model.set_input_size((96, 128))
    assert model.stages[2].pos_embed.shape[1:3] == (6, 8)
    assert torch.allclose(model(images(96, 128)), want, atol=1e-6)
    model.set_input_size(window_size=4)
    assert model.stages[1].blocks[0].mixer.window.window_size == 4


def test_checkpointing_gives_identical_gradients_with_noise_and_drop_path():
    gradients = []
    for enable in (False, True):
        model = small(depths=(2, 2, 2, 2), drop_path_rate=0.3).train()
        model.set_grad_checkpointing(enable)
        calls = []
        model.stages[0].blocks[1].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(3)
        model(images(40, 64, batch=4)).square().sum().backward()
        assert len(calls) == 1 + enable  # once more in the backward pass
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_statistics_are_updated_once_where_a_compiler_recomputes_blocks():
    torch._dynamo.reset()
    model = small(depths=(1, 0, 0, 0)).train()
    other = copy.deepcopy(model)
    other.set_grad_checkpointing()
    for run in (model, torch.compile(other, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(3)
        run(images(40, 64)).square().sum().backward()
    for (key, want), got in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(got, want, msg=key)
    for want, got in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    torch._dynamo.reset()


def test_layer_groups_cover_every_parameter():
    from timm.models import group_parameters

    for coarse in (False, True):
        model = small()
        groups = group_parameters(model, model.group_matcher(coarse=coarse))
        assert {name for names in groups.values() for name in names} == {name for name, _ in model.named_parameters()}
        assert len(groups) >= 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_half_precision_stays_finite(dtype, training):
    for model, autocast in ((small().to(dtype), False), (small(), True)):
        model.train(training)
        x = images(40, 64) if autocast else images(40, 64).to(dtype)
        with torch.autocast("cpu", dtype, enabled=autocast):
            y = model(x)
        y.float().sum().backward()
        assert y.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_float64_stays_float64():
    model = small().double().train()
    assert model(images(40, 64).double()).dtype == torch.float64


def test_channels_last_changes_nothing():
    model = small().eval()
    want = model(images(64, 64))
    got = model.to(memory_format=torch.channels_last)(images(64, 64).to(memory_format=torch.channels_last))
    assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "training"),
    [
        ("aot_eager", True),
        *(pytest.param("eager", training, marks=pytest.mark.slow) for training in (False, True)),
        pytest.param("aot_eager", False, marks=pytest.mark.slow),  # as in tests/contract/test_backbones.py
    ],
)
def test_compiles_whole(backend, training):
    torch._dynamo.reset()
    model = small(depths=(1, 0, 0, 1)).train(training)  # one block of each kind
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend=backend)
    outputs = []
    for run in (model, compiled):
        torch.manual_seed(2)
        outputs.append(run(images(40, 64)))
        outputs[-1].sum().backward()
    assert torch.allclose(*outputs, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.slow
def test_one_exported_program_serves_every_batch_and_size():
    model = small(depths=(1, 0, 0, 1)).eval()  # one block of each kind
    sizes = {0: Dim("b", min=1, max=16), 2: Dim("h", min=64, max=1024), 3: Dim("w", min=64, max=1024)}
    program = torch.export.export(model, (images(96, 136),), dynamic_shapes=(sizes,)).module()
    for batch, *size in ((1, 64, 224), (3, 101, 77), (2, 128, 112)):
        x = images(*size, batch=batch)
        assert torch.allclose(program(x), model(x), atol=1e-5)


@pytest.mark.slow
def test_the_default_layout_exports():
    model = small().eval()
    sizes = {0: Dim("b", min=1, max=16), 2: Dim("h", min=64, max=1024), 3: Dim("w", min=64, max=1024)}
    program = torch.export.export(model, (images(96, 136),), dynamic_shapes=(sizes,)).module()
    for batch, *size in ((1, 64, 224), (3, 101, 77), (2, 128, 112)):
        x = images(*size, batch=batch)
        assert torch.allclose(program(x), model(x), atol=1e-5)
