from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers import cluster
from saccade.layers.glmix import Block, GLMix, LocalConv, MapAttention
from saccade.layers.slots import SlotMixer
from saccade.models.glnet import GLNet
from support.clustering import check_clustering, check_empty_features, check_half_precision, check_memory
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


@pytest.mark.parametrize("positions", [1, 30, 77, 80])
def test_soft_clustering_equals_textbook_with_gradients(positions: int) -> None:
    check_clustering(cluster.soft_cluster, positions)


def test_empty_features_give_finite_gradients() -> None:
    check_empty_features(cluster.soft_cluster)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_stays_close_where_squares_overflow(dtype: torch.dtype, tolerance: float) -> None:
    check_half_precision(cluster.soft_cluster, dtype, tolerance)


@pytest.mark.parametrize(("dim", "dtype"), [(64, torch.float32), (512, torch.float32), (512, torch.bfloat16)])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_clustering_keeps_no_more_for_backward_than_textbook(dim: int, dtype: torch.dtype) -> None:
    check_memory(cluster.soft_cluster, dim, dtype)


@pytest.mark.parametrize("size", [(56, 56), (13, 17), (8, 9), (7, 9), (5, 6), (1, 3), (1, 1)])
@pytest.mark.parametrize("side", [3, 8])
def test_pooling_matrices_equal_adaptive_pooling(size: tuple[int, int], side: int) -> None:
    x = torch.randn(2, *size, 4, dtype=torch.float64)
    rows, columns = cluster.cell_weights(size[0], side, x), cluster.cell_weights(size[1], side, x)
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
