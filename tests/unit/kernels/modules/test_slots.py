"""Ways to pool slots and to cluster that are faster on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from saccade.kernels.modules import slots
from saccade.kernels.ops import cluster as operators
from saccade.kernels.ops import product
from saccade.layers import cluster
from support.clustering import check_clustering, check_empty_features, check_half_precision, check_memory
from support.kernels import by_references

FORMS = [slots.cluster_unpadded, slots.cluster_by_positions, slots.cluster_by_attention]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 30, 77, 80])
@pytest.mark.parametrize("large", [50, slots.LARGE_MAP])
def test_every_form_equals_textbook_with_gradients(form, positions, large, monkeypatch):
    monkeypatch.setattr(slots, "LARGE_MAP", large)
    check_clustering(form, positions)


@pytest.mark.parametrize("form", FORMS)
def test_empty_features_give_finite_gradients(form):
    check_empty_features(form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_stays_close_where_squares_overflow(form, dtype, tolerance):
    check_half_precision(form, dtype, tolerance)


@pytest.mark.parametrize("dim", [64, 96])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_fused_attention_keeps_no_more_for_backward_than_textbook(dim):
    check_memory(slots.cluster_by_attention, dim, torch.bfloat16)


def test_fused_attention_is_chosen_on_cuda_in_half_precision_for_large_narrow_maps_only():
    assert not slots.fusable(torch.empty(1, 1024, 64, dtype=torch.bfloat16))
    with FakeTensorMode():

        def chosen(dim: int, dtype: torch.dtype, positions: int = 1024) -> bool:
            return slots.fusable(torch.empty(1, positions, dim, dtype=dtype, device="cuda"))

        assert chosen(64, torch.bfloat16)
        assert chosen(128, torch.float16)
        assert not chosen(256, torch.bfloat16)
        assert not chosen(64, torch.float32)
        assert not chosen(64, torch.bfloat16, positions=256)


def test_slots_pooled_by_means_on_a_gpu_have_the_shape_of_adaptive_pooling():
    mixer = slots.FusedSlotMixer(5, num_heads=1, num_slots=16)
    with FakeTensorMode():
        for grid in ((16, 8), (14, 9)):
            x = torch.empty(2, grid[0] * grid[1], 5, device="cuda")
            assert mixer.initial_slots(x, grid).shape == (2, 16, 5)


def test_means_of_whole_cells_equal_adaptive_pooling():
    x = torch.randn(2, 16 * 8, 5, dtype=torch.float64)
    torch.testing.assert_close(slots.average_cells(x, (16, 8), 4), cluster.pool_slots(x, (16, 8), 4))


@pytest.mark.parametrize("grid", [(14, 14), (13, 17), (5, 6), (1, 1)])
def test_means_by_a_product_equal_adaptive_pooling_with_their_gradient(grid: tuple[int, int]):
    x = torch.randn(2, grid[0] * grid[1], 5, dtype=torch.float64, requires_grad=True)
    want, got = cluster.pool_slots(x, grid, 8), slots.average_by_product(x, grid, 8)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    gradients = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (got, want)]
    torch.testing.assert_close(*gradients)


def test_means_by_a_product_in_half_precision_point_where_the_exact_ones_do():
    x = torch.randn(2, 196, 64)
    got = slots.average_by_product(x.bfloat16(), (14, 14), 8).float()
    want = slots.average_by_product(x.bfloat16().float(), (14, 14), 8)
    assert float(1 - F.cosine_similarity(got, want, dim=-1).min()) < 1e-5


@pytest.mark.parametrize("positions", [1, 30, 77])
def test_clustering_by_kernels_equals_textbook_with_gradients(monkeypatch, positions):
    called = by_references(monkeypatch)
    monkeypatch.setattr(operators, "serves", lambda *_: True)
    mixer = slots.FusedSlotMixer(12, num_heads=1, num_slots=9)
    del mixer.scale

    def form(given, features, scale):
        mixer.scale = scale
        return mixer.cluster(given, features)

    check_clustering(form, positions)
    assert called["gather_back"] == called["scatter_back"] == 1


def test_kmeans_and_maps_on_the_cpu_are_left_to_the_plain_class():
    source = torch.randn(2, 36, 8)
    for options in ({}, {"clustering": "kmeans"}, {"slots": "learned"}):
        torch.manual_seed(0)
        mixer = slots.FusedSlotMixer(8, num_heads=1, num_slots=9, **options)
        fused = mixer(source, source, (6, 6))
        mixer.__class__ = slots.SlotMixer
        assert torch.equal(fused, mixer(source, source, (6, 6)))


def test_the_kernels_serve_few_slots_and_enough_programs(monkeypatch):
    class Somewhere:
        is_cuda = True

        def __init__(self, images, count, channels, dtype=torch.bfloat16):
            self.shape, self.dtype = (images, count, channels), dtype

    def serves(images=2, positions=256, count=16, channels=64, dtype=torch.bfloat16):
        return operators.serves(
            Somewhere(images, count, channels, dtype), Somewhere(images, positions, channels, dtype)
        )

    monkeypatch.setattr(operators, "INSTALLED", True)
    monkeypatch.setattr(operators, "shared_memory", lambda _: 232_448)
    assert not serves()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert serves()
    assert serves(count=64, channels=256)
    assert serves(images=128, positions=3136)
    assert not serves(positions=3136)
    assert not serves(count=81)
    assert not serves(channels=384)
    assert not serves(dtype=torch.float32)
    with torch.no_grad():
        assert not serves()
    monkeypatch.setattr(operators, "shared_memory", lambda _: 101_376)
    assert serves(count=64, channels=128)
    assert not serves(count=64, channels=129)
    monkeypatch.setattr(operators, "shared_memory", lambda _: 65_536)
    assert not serves()


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
def test_products_and_gradients_equal_the_plain_ones(transposed):
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    a = a.mT.contiguous().mT if transposed in ("left", "both") else a
    b = b.mT.contiguous().mT if transposed in ("right", "both") else b
    a, b = a.requires_grad_(), b.requires_grad_()
    want, slope = a @ b, torch.randn(2, 3, 5, dtype=torch.float64)
    for multiply in (product.matmul, product.unpadded_product):
        got = multiply(a, b)
        torch.testing.assert_close(got, want)
        both = torch.autograd.grad(got, (a, b), slope), torch.autograd.grad(want, (a, b), slope, retain_graph=True)
        torch.testing.assert_close(*both)


def test_a_product_that_the_compiler_takes_whole_is_one_operator_in_its_graph():
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compiler.reset()
    torch.compile(lambda a, b: product.unpadded_product(a, b), backend=backend)(
        torch.randn(1, 5, 3), torch.randn(1, 3, 2)
    )
    assert any("unpadded_product" in target for target in seen), seen
