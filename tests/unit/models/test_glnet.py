from typing import Any

import pytest
import timm
import torch
from timm.models import create_feature_extractor
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.export import Dim, export

from saccade.layers.glmix import GLMix, MapAttention
from saccade.layers.token_label import TokenBox
from saccade.models.glnet import GLNet
from support.golden import relative_error

TINY: dict[str, Any] = {
    "dims": (16, 24, 32, 48),
    "depths": (1, 1, 2, 1),
    "num_heads": (2, 2, 2, 2),
    "num_slots": 9,
    "num_classes": 5,
}
PATCHES: dict[str, Any] = {"overlap": False, "pos_conv": False, "conv_mlp": False, "mlp_ratio": 4.0}
STYLES: dict[str, dict[str, Any]] = {"overlap": {}, "patches": PATCHES}


def tiny(**options: Any) -> GLNet:
    """A small model, the same for the same options, whose biases and scales are not at their dull initial values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GLNet(**{**TINY, **options})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def listen(module: nn.Module) -> dict[str, Tensor]:
    """Collect what goes into and comes out of a module."""
    heard: dict[str, Tensor] = {}
    module.register_forward_hook(lambda _, args, out: heard.update(input=args[0], output=out))
    return heard


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(20, 20), (8, 8), (3, 5), (33, 47), (64, 50)])
def test_any_size_is_classified(style: str, size: tuple[int, int]) -> None:
    model = tiny(**STYLES[style])
    x = images(1, 3, *size)
    with torch.no_grad():
        logits = model(x)
        maps = model.forward_intermediates(x, intermediates_only=True)
    assert logits.shape == (1, 5)
    assert logits.isfinite().all()
    sides = size
    for index, map in enumerate(maps):
        for _ in range(2 if index == 0 and style == "overlap" else 1):
            step = 4 if index == 0 and style == "patches" else 2
            sides = tuple(-(-s // step) if style == "overlap" else max(s // step, 1) for s in sides)
        assert map.shape == (1, TINY["dims"][index], *sides)


def test_patches_leave_out_what_does_not_fill_one() -> None:
    model = tiny(**PATCHES)
    x = images(2, 3, 67, 70)
    y = x.clone()
    y[:, :, 64:], y[:, :, :, 68:] = 9.0, 9.0
    with torch.no_grad():
        torch.testing.assert_close(model.stem(x), model.stem(y))


@pytest.mark.parametrize(
    "options",
    [
        {"num_slots": 16},
        {"kernel_size": 3},
        {"slots": "learned", "num_slots": 7},
        {"slot_scale": "constant"},
        {"mixer": "local"},
        {"mixer": "global"},
        {"mixer": "local_global"},
        {"mixer": "global_local"},
        {"local": "window", "window_size": 4},
        {"clustering": "kmeans", "kmeans_iterations": 2},
        {"pattern": ("A", "AG", "G", "GA")},
        {"pos_conv": False},
        {"conv_mlp": False},
        {"layer_scale": 0.5},
        {"overlap": False},
        {"global_pool": "max"},
        {"token_label": True},
    ],
    ids=str,
)
def test_every_option_trains_every_parameter(options: dict[str, Any]) -> None:
    model = tiny(**options).train()
    model(images(3, 3, 64, 80)).square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert silent == []
    with torch.no_grad():
        assert not torch.equal(model.eval()(images(1, 3, 64, 80)), tiny()(images(1, 3, 64, 80)))


def test_pattern_repeats_over_a_stage() -> None:
    model = GLNet(**{**TINY, "depths": (1, 2, 5, 1), "pattern": ("G", "A", "GA", "AG")})
    kinds = [[type(block.mixer) for block in stage.blocks] for stage in model.stages]
    assert kinds == [[GLMix], [MapAttention] * 2, [GLMix, MapAttention] * 2 + [GLMix], [MapAttention]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": ("G", "G", "X", "A")}, "'G' .GLMix. and 'A'"),
        ({"pattern": ("G", "G", "", "A")}, "'G' .GLMix. and 'A'"),
        ({"depths": (1, 1, 2)}, "different numbers of stages"),
        ({"dims": (16, 24, 32, 50), "num_heads": None}, "multiples of 32"),
        ({"num_slots": 20}, "square grid"),
        ({"global_pool": "token"}, "'avg', 'max' and ''"),
        ({"global_pool": ""}, "use 'avg' or 'max' to classify"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GLNet(**{**TINY, **options})


def test_drop_path_grows_evenly_over_all_blocks() -> None:
    model = GLNet(**TINY, drop_path_rate=0.4)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_layer_scale_starts_as_asked_and_is_exempt_from_decay_by_its_shape() -> None:
    model = GLNet(**TINY, layer_scale=1e-4)
    gammas = [p for n, p in model.named_parameters() if n.endswith("gamma")]
    assert len(gammas) == 10
    assert all(g.ndim == 1 and g.eq(1e-4).all() for g in gammas)


def test_classifier_can_be_replaced_and_removed() -> None:
    model = tiny(token_label=True)
    x = images(2, 3, 40, 40)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.aux_head.out_features == 3
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    torch.testing.assert_close(model(x), model.forward_head(model.forward_features(x), pre_logits=True))
    model.reset_classifier(0, "")
    assert model(x).shape == (2, 48, 2, 2)
    assert tiny().double().eval().head.weight.dtype == torch.float64
    double = tiny().double()
    double.reset_classifier(4)
    assert double(x.double()).dtype == torch.float64


def test_features_come_at_every_stride() -> None:
    options = {k: v for k, v in TINY.items() if k != "num_classes"}
    model = timm.create_model("glnet_4g", features_only=True, out_indices=(1, 3), **options)
    assert model.feature_info.reduction() == [8, 32]
    assert model.feature_info.channels() == [24, 48]
    assert [f.shape for f in model(images(1, 3, 64, 96))] == [(1, 24, 8, 12), (1, 48, 2, 3)]


def test_intermediates_are_the_stages_and_the_last_is_normalised_if_asked() -> None:
    model = tiny()
    x = images(2, 3, 64, 64)
    with torch.no_grad():
        features, maps = model.forward_intermediates(x)
        normed = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
        torch.testing.assert_close(features, model.forward_features(x))
    torch.testing.assert_close(model.norm(maps[3]), features)
    torch.testing.assert_close(normed[0], features)


def test_layer_decay_orders_parameters_from_stem_to_head() -> None:
    model = GLNet(**TINY)
    names = {id(p): n for n, p in model.named_parameters()}
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {names[id(p)]: g["lr_scale"] for g in groups for p in g["params"]}
    order = ["stem.conv1.weight", "stages.0.blocks.0.norm1.weight", "stages.2.blocks.0.norm1.weight"]
    order += ["stages.2.blocks.1.norm1.weight", "stages.3.blocks.0.norm1.weight", "head.weight"]
    scales = [scale[name] for name in order]
    assert scales == sorted(scales)
    assert len(set(scales)) == len(scales)


@pytest.mark.parametrize("style", STYLES)
def test_recomputed_blocks_give_the_same_gradients(style: str) -> None:
    gradients = []
    for recompute in (False, True):
        model = tiny(**STYLES[style], drop_path_rate=0.3).train()
        model.set_grad_checkpointing(recompute)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model(images(4, 3, 40, 40)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("options", [{"token_label": True}, {**PATCHES, "clustering": "kmeans"}], ids=str)
def test_half_precision_is_finite_and_close(dtype: torch.dtype, options: dict[str, Any]) -> None:
    model = tiny(**options)
    x = images(2, 3, 64, 48)
    with torch.no_grad():
        want = model(x)
        with torch.autocast("cpu", dtype):
            mixed = model(x)
        pure = model.to(dtype)(x.to(dtype))
    for got in (mixed, pure):
        assert got.isfinite().all()
        assert "kmeans" in options.values() or relative_error(got, want) < 0.05
    model.train()(x.to(dtype)).float().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whole_graph_compiles(backend: str) -> None:
    model = tiny(dims=(16,), depths=(2,), num_heads=(2,), pattern=("GA",), token_label=True)
    x = images(2, 3, 20, 28)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    model.train()
    compiled(x).square().sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for ours, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("style", "least"), [("overlap", 9), ("patches", 16)])
def test_exported_program_serves_every_batch_and_size(style: str, least: int) -> None:
    model = tiny(**STYLES[style], dims=(16, 32), depths=(1, 1), num_heads=(2, 2), pattern=("G", "A"))
    sizes = {0: Dim("batch", min=1, max=64), 2: Dim("h", min=least, max=512), 3: Dim("w", min=least, max=512)}
    program = export(model, (images(2, 3, 40, 56),), dynamic_shapes=(sizes,))
    assert not any("adaptive" in str(node.target) for node in program.graph.nodes)
    exported = program.module()
    for shape in ((1, 3, 64, 64), (3, 3, 97, 33), (2, 3, least, 131)):
        x = images(*shape)
        with torch.no_grad():
            torch.testing.assert_close(exported(x), model(x), rtol=1e-4, atol=1e-5)


def test_token_logits_add_half_their_maximum_in_training_and_evaluation() -> None:
    model = tiny(token_label=True)
    x = images(2, 3, 64, 96)
    for mode in (False, True):
        model.train(mode)
        whole = model(x)
        parts = model.forward_token_label(x, box=TokenBox(0, 0, 0, 0))
        assert parts.tokens.shape == (2, 6, 5)
        torch.testing.assert_close(whole, parts.logits + 0.5 * parts.tokens.amax(1))


def test_mixed_tokens_are_swapped_after_the_stem_and_their_logits_back() -> None:
    model = tiny(token_label=True)
    x = images(2, 3, 64, 96)  # stem map 16 x 24, last map 2 x 3
    box = TokenBox(top=1, left=0, bottom=2, right=2)
    stem, into, last = listen(model.stem), listen(model.stages[0]), listen(model.norm)
    with torch.no_grad():
        output = model.forward_token_label(x, box=box)
        mixed = model.aux_head(last["output"].permute(0, 2, 3, 1))
    inside = torch.zeros(16, 24, dtype=torch.bool)
    inside[8:16, 0:16] = True
    torch.testing.assert_close(into["input"][:, :, inside], stem["output"].flip(0)[:, :, inside])
    torch.testing.assert_close(into["input"][:, :, ~inside], stem["output"][:, :, ~inside])
    tokens = output.tokens.unflatten(1, (2, 3))
    torch.testing.assert_close(tokens[:, 1:2, 0:2], mixed.flip(0)[:, 1:2, 0:2])
    torch.testing.assert_close(tokens[:, 0], mixed[:, 0])
    torch.testing.assert_close(tokens[:, 1, 2], mixed[:, 1, 2])
    assert output.box == box


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(97, 131), (20, 20)])
def test_drawn_box_lies_on_the_last_grid_at_any_size(style: str, size: tuple[int, int]) -> None:
    model = tiny(**STYLES[style], token_label=True)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        height, width = model.forward_features(images(2, 3, *size)).shape[2:]
        output = model.forward_token_label(images(2, 3, *size), lam=0.0, generator=generator)
        again = model.forward_token_label(images(2, 3, *size), lam=0.0, generator=torch.Generator().manual_seed(3))
    assert output.tokens.shape[1] == height * width
    assert output.box.bottom <= height
    assert output.box.right <= width
    assert again.box == output.box
    torch.testing.assert_close(again.tokens, output.tokens)


def test_token_labelling_needs_its_classifier() -> None:
    with pytest.raises(ValueError, match="token_label=True"):
        tiny().forward_token_label(images(2, 3, 32, 32))


@pytest.mark.parametrize("options", [{}, PATCHES])
def test_a_traced_model_answers_with_the_bits_of_the_eager_one(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = GLNet(**TINY, **options).eval()
    x = torch.randn(2, 3, 96, 80)
    traced = create_feature_extractor(model, {"head": "logits"})
    with torch.no_grad():
        assert torch.equal(traced(x)["logits"], model(x))
