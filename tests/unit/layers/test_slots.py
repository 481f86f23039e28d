from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from saccade.layers import cluster
from saccade.layers.glmix import Block, GLMix, LocalConv, MapAttention
from saccade.layers.slots import SlotMixer
from saccade.models.glnet import GLNet
from support.golden import part, part_state_dict, relative_error, strided, tensor

GLMIX_PARTS = {
    "glmix_pool": {},
    "glmix_pool_cpe_dwffn_ls": {"pos_conv": True, "conv_mlp": True, "mlp_ratio": 3.0, "layer_scale": 1e-4},
    "glmix_param": {"slots": "learned", "num_slots": 20},
    "glmix_small_map": {"num_slots": 64},
    "glmix_nonsquare": {"num_slots": 16, "kernel_size": 3},
    "glmix_const_scale": {"slot_scale": "constant"},
}
BLOCK_OPTIONS = ("pos_conv", "conv_mlp", "mlp_ratio", "layer_scale")


def textbook(slots: Tensor, features: Tensor, scale: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """GLMix eq. 2-4 as written: correspondence, softmax over positions, softmax over slots."""
    logits = scale * F.normalize(slots, dim=-1) @ F.normalize(features, dim=-1).mT  # B, M, N
    clustered = logits.softmax(-1) @ features
    return logits.mT.softmax(-1) @ transform(clustered)


def load_published(block: nn.Module, state_dict: dict[str, Tensor]) -> nn.Module:
    """Load a stand-alone published block through the model's own conversion."""
    prefix = "stages.0.blocks.0."
    published = {prefix + key: value for key, value in state_dict.items()} | {"downsample_layers.": torch.zeros(())}
    model = GLNet(dims=(32,), depths=(1,), pattern=("G",), num_classes=0)
    converted = model.convert(published)
    block.load_state_dict({k.removeprefix(prefix): v for k, v in converted.items() if k.startswith(prefix)})
    return block.double().eval()


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def run(module: nn.Module, *maps: Tensor) -> Tensor:
    """Call a module that takes tokens and their grid on maps B, H, W, C, and return a map."""
    grid = maps[0].shape[1:3]
    return module(*(x.flatten(1, 2) for x in maps), grid).unflatten(1, grid)


def listen(module: nn.Module) -> dict[str, Tensor]:
    """Collect what goes into and comes out of a module."""
    heard: dict[str, Tensor] = {}
    module.register_forward_hook(lambda _, args, out: heard.update(input=args[0], output=out))
    return heard


def like_golden(got: Tensor, want: Tensor) -> Tensor:
    return strided(got, 512) if want.ndim == 1 else got


@pytest.mark.parametrize("name", GLMIX_PARTS)
def test_glmix_block_equals_published_one(name: str) -> None:
    record, want = part("glmix_parts", name)
    options = GLMIX_PARTS[name]
    glmix = GLMix(32, num_heads=2, **{k: v for k, v in options.items() if k not in BLOCK_OPTIONS})
    block = Block(32, glmix, **{"mlp_ratio": 4.0, **{k: v for k, v in options.items() if k in BLOCK_OPTIONS}})
    load_published(block, part_state_dict(record))
    attention, slots, features = (
        listen(m) for m in (glmix.global_branch.attn, glmix.global_branch.slots, glmix.global_branch.features)
    )
    with torch.no_grad():
        out = run(block, channels_last(tensor(record["input_key"], record["input_shape"]).double()))
        logits = cluster.correspondence(slots["output"], features["output"].flatten(1, 2), glmix.global_branch.scale)
    assert relative_error(out.permute(0, 3, 1, 2), want["out"]) < 1e-12
    assert relative_error(like_golden(attention["input"], want["slots_in"]), want["slots_in"]) < 1e-12
    assert relative_error(like_golden(attention["output"], want["slots_out"]), want["slots_out"]) < 1e-12
    assert relative_error(like_golden(logits, want["logits"]), want["logits"]) < 1e-12


@torch.no_grad()
def test_attention_block_equals_published_map_version() -> None:
    record, want = part("glmix_parts", "mhsa_nchw")
    block = Block(32, MapAttention(32, num_heads=2), mlp_ratio=3.0, pos_conv=True, conv_mlp=True)
    load_published(block, part_state_dict(record))
    out = run(block, channels_last(tensor(record["input_key"], record["input_shape"]).double()))
    assert relative_error(out.permute(0, 3, 1, 2), want["out"]) < 1e-12


@torch.no_grad()
def test_attention_block_equals_published_token_version() -> None:
    record, want = part("glmix_parts", "mhsa_nlc")
    block = Block(32, MapAttention(32, num_heads=2), mlp_ratio=4.0)
    load_published(block, part_state_dict(record))
    tokens = tensor(record["input_key"], record["input_shape"]).double()
    assert relative_error(block(tokens, (6, 7)), want["out"]) < 1e-12


FORMS = {"direct": cluster._soft_direct, "by_positions": cluster._soft_by_positions, "fused": cluster._soft_fused}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 30, 77, 80])
@pytest.mark.parametrize("large", [50, cluster.LARGE_MAP])
def test_soft_clustering_equals_textbook_with_gradients(
    form: str, positions: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LARGE_MAP", large)
    generator = torch.Generator().manual_seed(positions)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = [random(2, 9, 12), random(2, positions, 12), torch.tensor(3.0, dtype=torch.float64), random(12, 12)]
    for value in inputs:
        value.requires_grad_()
    slots, features, scale, weight = inputs
    want = textbook(slots, features, scale, lambda s: s @ weight)
    clustered, dispatch = FORMS[form](slots, features, scale)
    got = dispatch(clustered @ weight)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    with torch.no_grad():
        clustered, dispatch = FORMS[form](slots, features, scale)
        torch.testing.assert_close(dispatch(clustered @ weight), want, rtol=1e-11, atol=1e-11)
    grad = random(*want.shape)
    for ours, theirs in zip(
        torch.autograd.grad(got, inputs, grad), torch.autograd.grad(want, inputs, grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_empty_features_give_finite_gradients(form: str) -> None:
    slots, features = torch.zeros(1, 4, 8, requires_grad=True), torch.zeros(1, 6, 8, requires_grad=True)
    clustered, dispatch = FORMS[form](slots, features, torch.tensor(4.0))
    dispatch(clustered).sum().backward()
    assert slots.grad is not None
    assert slots.grad.isfinite().all()
    assert features.grad is not None
    assert features.grad.isfinite().all()


def saved_bytes(function: Callable[[], Any]) -> int:
    """Bytes of distinct storage that autograd keeps for backward."""
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = function()
    del result
    return sum(x.untyped_storage().nbytes() for x in kept.values())


@pytest.mark.parametrize(
    ("form", "dim", "dtype"),
    [
        ("direct", 64, torch.float32),
        ("direct", 128, torch.float32),
        ("direct", 512, torch.float32),
        ("direct", 512, torch.bfloat16),
        ("fused", 64, torch.bfloat16),
        ("fused", 96, torch.bfloat16),
    ],
)
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_clustering_keeps_no_more_for_backward_than_textbook(form: str, dim: int, dtype: torch.dtype) -> None:
    slots, features = torch.randn(1, 64, dim, dtype=dtype), torch.randn(1, 784, dim, dtype=dtype, requires_grad=True)
    scale = torch.tensor(4.0, dtype=dtype, requires_grad=True)

    def run() -> Tensor:
        clustered, dispatch = FORMS[form](slots, features, scale)
        return dispatch(clustered)

    assert saved_bytes(run) <= saved_bytes(lambda: textbook(slots, features, scale, lambda s: s))


def test_fused_attention_is_chosen_on_cuda_in_half_precision_for_large_narrow_maps_only() -> None:
    assert not cluster.fusable(torch.empty(1, 1024, 64, dtype=torch.bfloat16))
    with FakeTensorMode():

        def chosen(dim: int, dtype: torch.dtype, positions: int = 1024) -> bool:
            return cluster.fusable(torch.empty(1, positions, dim, dtype=dtype, device="cuda"))

        assert chosen(64, torch.bfloat16)
        assert chosen(128, torch.float16)
        assert not chosen(256, torch.bfloat16)
        assert not chosen(64, torch.float32)
        assert not chosen(64, torch.bfloat16, positions=256)


def test_slots_pooled_by_means_on_a_gpu_have_the_shape_of_adaptive_pooling() -> None:
    with FakeTensorMode():
        for grid in ((16, 8), (14, 9)):
            x = torch.empty(2, grid[0] * grid[1], 5, device="cuda")
            assert cluster.pool_slots(x, grid, 4).shape == (2, 16, 5)


def test_means_of_whole_cells_equal_adaptive_pooling() -> None:
    x = torch.randn(2, 16 * 8, 5, dtype=torch.float64)
    torch.testing.assert_close(cluster.average_cells(x, (16, 8), 4), cluster.pool_slots(x, (16, 8), 4))


@pytest.mark.parametrize("grid", [(14, 14), (13, 17), (5, 6), (1, 1)])
def test_means_by_a_product_equal_adaptive_pooling_with_their_gradient(grid: tuple[int, int]) -> None:
    x = torch.randn(2, grid[0] * grid[1], 5, dtype=torch.float64, requires_grad=True)
    want, got = cluster.pool_slots(x, grid, 8), cluster.average_by_product(x, grid, 8)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    gradients = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (got, want)]
    torch.testing.assert_close(*gradients)


def test_means_by_a_product_in_half_precision_point_where_the_exact_ones_do() -> None:
    x = torch.randn(2, 196, 64)
    got = cluster.average_by_product(x.bfloat16(), (14, 14), 8).float()
    want = cluster.average_by_product(x.bfloat16().float(), (14, 14), 8)
    assert float(1 - F.cosine_similarity(got, want, dim=-1).min()) < 1e-5


@pytest.mark.parametrize("size", [(56, 56), (13, 17), (8, 9), (7, 9), (5, 6), (1, 3), (1, 1)])
@pytest.mark.parametrize("side", [3, 8])
def test_pooling_matrices_equal_adaptive_pooling(size: tuple[int, int], side: int) -> None:
    x = torch.randn(2, *size, 4, dtype=torch.float64)
    rows, columns = cluster._cells(size[0], side, x), cluster._cells(size[1], side, x)
    got = torch.einsum("ih,bhwc,jw->bijc", rows, x, columns).flatten(1, 2)
    torch.testing.assert_close(got, cluster.pool_slots(x.flatten(1, 2), size, side), rtol=1e-12, atol=1e-12)


def plain_kmeans(slots: Tensor, features: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm on directions for one image, in loops."""
    unit = F.normalize(features, dim=-1)
    centres = list(F.normalize(slots, dim=-1))

    def nearest() -> list[int]:
        return [max(range(len(centres)), key=lambda m: float(centres[m] @ u)) for u in unit]

    for _ in range(iterations):
        owner = nearest()
        for m in range(len(centres)):
            mine = [unit[n] for n, o in enumerate(owner) if o == m]
            if mine:
                centres[m] = F.normalize(torch.stack(mine).sum(0), dim=-1)
    owner = nearest()
    means = []
    for m, centre in enumerate(centres):
        mine = [n for n, o in enumerate(owner) if o == m] or [int((unit @ centre).argmax())]
        means.append(features[mine].mean(0))
    return torch.stack(means), torch.tensor(owner)


@pytest.mark.parametrize(("positions", "clusters"), [(60, 5), (6, 9)])
def test_kmeans_equals_plain_loops(positions: int, clusters: int) -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2, positions, 7, generator=generator, dtype=torch.float64)
    slots = torch.randn(2, clusters, 7, generator=generator, dtype=torch.float64)
    clustered, dispatch = cluster.kmeans_cluster(slots, features, 4)
    ids = torch.arange(clusters, dtype=torch.float64).view(1, -1, 1).expand(2, -1, 7)
    dispatched = dispatch(ids)
    for image in range(2):
        means, owner = plain_kmeans(slots[image], features[image], 4)
        torch.testing.assert_close(clustered[image], means)
        torch.testing.assert_close(dispatched[image, :, 0], owner.double())


def test_kmeans_passes_gradient_to_features_but_not_to_initial_slots() -> None:
    features = torch.randn(1, 20, 4, requires_grad=True)
    slots = torch.randn(1, 3, 4, requires_grad=True)
    clustered, dispatch = cluster.kmeans_cluster(slots, features, 3)
    dispatch(clustered.square()).sum().backward()
    assert slots.grad is None
    assert features.grad is not None
    assert features.grad.abs().sum(-1).gt(0).all()


def test_assignment_gives_the_weights_that_forward_used() -> None:
    for options in ({}, {"clustering": "kmeans"}, {"slots": "learned"}):
        mixer = SlotMixer(16, num_heads=2, num_slots=9, **options).double()
        slots, features, attention = (listen(m) for m in (mixer.slots, mixer.features, mixer.attn))
        x = torch.randn(2, 5, 7, 16, dtype=torch.float64)
        run(mixer, x, x + 1)
        weights = mixer.assignment(slots["output"], features["output"])
        assert weights.shape == (2, 9, 35)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 9, dtype=torch.float64))
        torch.testing.assert_close(weights @ features["output"].flatten(1, 2), attention["input"])


def test_kmeans_assignment_shares_every_position_among_no_two_clusters() -> None:
    mixer = SlotMixer(16, num_heads=2, num_slots=4, clustering="kmeans")
    weights = mixer.assignment(torch.randn(1, 4, 16), torch.randn(1, 9, 9, 16))
    assert weights.gt(0).sum(1).max() == 1


def test_slot_scale_starts_at_inverse_root_of_width_and_is_learned_unless_constant() -> None:
    learned, constant = SlotMixer(64, num_heads=2), SlotMixer(64, num_heads=2, slot_scale="constant")
    for mixer in (learned, constant):
        assert mixer.scale is not None
        assert mixer.scale.shape == ()
        assert mixer.scale.item() == 0.125
        assert "scale" in mixer.state_dict()
    assert "scale" in dict(learned.named_parameters())
    assert "scale" not in dict(constant.named_parameters())


def test_larger_scale_sharpens_the_assignment() -> None:
    mixer = SlotMixer(16, num_heads=2, num_slots=4)
    slots, features = torch.randn(1, 4, 16), torch.randn(1, 6, 6, 16)
    peaks = []
    for value in (0.0, 1.0, 20.0):
        nn.init.constant_(mixer.scale, value)
        peaks.append(float(mixer.assignment(slots, features).detach().max()))
    assert peaks[0] == pytest.approx(1 / 36)
    assert peaks[0] < peaks[1] < peaks[2]


def test_pooled_slots_follow_the_image_and_learned_ones_do_not() -> None:
    one, other = torch.randn(1, 36, 16), torch.randn(1, 36, 16)
    grid = (6, 6)
    pooled, learned = SlotMixer(16, num_heads=2, num_slots=4), SlotMixer(16, num_heads=2, num_slots=5, slots="learned")
    torch.testing.assert_close(pooled.initial_slots(one, grid)[0, 1], one.unflatten(1, grid)[0, :3, 3:].mean((0, 1)))
    assert not torch.equal(pooled.initial_slots(one, grid), pooled.initial_slots(other, grid))
    assert torch.equal(learned.initial_slots(one, grid), learned.initial_slots(other, grid))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_slots": 20}, "square grid"),
        ({"num_slots": 0}, "square grid"),
        ({"slots": "pooled"}, "'pool', 'learned'"),
        ({"slot_scale": "fixed"}, "'learned', 'constant'"),
        ({"clustering": "hard"}, "'soft', 'kmeans'"),
        ({"clustering": "kmeans", "slots": "learned"}, "no gradient"),
    ],
)
def test_slot_mixer_refuses_options_it_cannot_honour(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlotMixer(16, num_heads=2, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": "serial"}, "'local_global'"),
        ({"local": "swin"}, "'conv', 'window'"),
        ({"kernel_size": 4}, "odd"),
    ],
)
def test_glmix_refuses_options_it_cannot_honour(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GLMix(16, num_heads=2, **options)


def test_glmix_joins_its_branches_as_asked() -> None:
    x, source = torch.randn(2, 6, 5, 16), torch.randn(2, 6, 5, 16)

    def build(mixer: str) -> GLMix:
        torch.manual_seed(3)
        return GLMix(16, num_heads=2, num_slots=4, mixer=mixer)

    with torch.random.fork_rng():
        both = build("parallel")
        local, slots = both.local_branch, both.global_branch
        for mixer, want in (
            ("parallel", local(x) + run(slots, x, source)),
            ("local_global", run(slots, local(x), local(x))),
            ("global_local", local(run(slots, x, source))),
        ):
            torch.testing.assert_close(run(build(mixer), x, source), want)
        for mixer, branch, absent, want in (
            ("local", local, "global_branch", local(x)),
            ("global", slots, "local_branch", run(slots, x, source)),
        ):
            alone = build(mixer)
            assert not hasattr(alone, absent)
            getattr(alone, f"{mixer}_branch").load_state_dict(branch.state_dict())
            torch.testing.assert_close(run(alone, x, source), want)


@pytest.mark.parametrize("kernel_size", [3, 5, 7])
def test_local_convolution_reaches_as_far_as_its_kernel(kernel_size: int) -> None:
    conv = LocalConv(8, kernel_size)
    x = torch.randn(1, 15, 15, 8, requires_grad=True)
    conv(x)[0, 7, 7].sum().backward()
    assert x.grad is not None
    reach = x.grad[0].abs().sum(-1).nonzero()
    assert reach.min() == 7 - kernel_size // 2
    assert reach.max() == 7 + kernel_size // 2


def test_local_window_attends_inside_its_window_only() -> None:
    mixer = GLMix(8, num_heads=2, mixer="local", local="window", window_size=4)
    x = torch.randn(1, 10, 9, 8, requires_grad=True)
    run(mixer, x, x)[0, 5, 5].sum().backward()
    assert x.grad is not None
    reach = x.grad[0].abs().sum(-1).nonzero()
    assert reach.min(0).values.tolist() == [4, 4]
    assert reach.max(0).values.tolist() == [7, 7]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_stays_close_where_squares_overflow(form: str, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    slots, features = (300 * torch.randn(1, n, 32, generator=generator) for n in (16, 144))
    results = []
    for kind in (torch.float32, dtype):
        clustered, dispatch = FORMS[form](slots.to(kind), features.to(kind), torch.tensor(5.0, dtype=kind))
        results.append(dispatch(clustered))
    assert results[1].dtype == dtype
    assert relative_error(results[1], results[0]) < tolerance


@pytest.mark.parametrize("scale", [0.1, -3.0, 25.0, 300.0])
def test_inference_clusters_as_training_does(scale):
    slots, features, after = torch.randn(2, 4, 8), torch.randn(2, 30, 8), torch.randn(2, 4, 8)
    factor = torch.tensor(scale)
    want, dispatch = cluster.soft_cluster(slots, features, factor)
    dispatched = dispatch(after)
    with torch.inference_mode():
        got, dispatch = cluster.soft_cluster(slots, features, factor)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dispatch(after), dispatched, rtol=1e-4, atol=1e-5)
