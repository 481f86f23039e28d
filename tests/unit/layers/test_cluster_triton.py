"""The kernels between maps and slots, in Triton's interpreter, and what calls them."""

import pytest
import torch

from saccade.layers import cluster_triton, parts
from saccade.layers.cluster import soft_cluster
from support.interpreter import interpreted, not_interpreted, run_interpreted
from support.kernels import add_up, gather, gather_back, scatter, scatter_back

SHAPES = [(2, 64, 16, 64), (2, 49, 9, 24), (1, 70, 16, 96), (2, 196, 49, 40), (1, 5, 3, 8), (1, 130, 64, 70)]


@pytest.mark.slow
@not_interpreted
def test_the_kernels_run_in_tritons_interpreter():
    assert f"{len(SHAPES)} passed" in run_interpreted(__file__, "test_a_kernel_gives")


@interpreted
@pytest.mark.parametrize(("images", "positions", "slots", "channels"), SHAPES)
def test_a_kernel_gives_what_plain_operators_give(images, positions, slots, channels):
    def itself(kernel):
        return kernel

    torch.manual_seed(0)
    query, held, of_slots = (torch.randn(images, slots, channels) for _ in range(3))
    features, grad = (torch.randn(images, positions, channels) for _ in range(2))
    features[0, 1] = 0  # has no direction
    near = {"rtol": 1e-4, "atol": 1e-5}
    scale = torch.tensor(3.0)
    want = gather(query, features, scale)
    got = cluster_triton.run_gather(itself, query, features, scale)
    torch.testing.assert_close(got, want, **near)
    torch.testing.assert_close(cluster_triton.run_scatter(itself, want[1], held), scatter(want[1], held), **near)
    for sums in (True, False):
        given = grad, want[1], held, sums
        torch.testing.assert_close(cluster_triton.run_scatter_back(itself, *given), scatter_back(*given), **near)
    given = of_slots, torch.randn_like(want[1]), query, features, scale, *want
    found, expected = cluster_triton.run_gather_back(itself, *given), gather_back(*given)
    for one in (found[1], expected[1]):
        one[0, 1] = 0  # a slope that depends on what a length of zero is taken for
    torch.testing.assert_close(found[:2], expected[:2], **near)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-4, atol=1e-3)


def test_a_bridge_by_kernels_has_the_plain_gradients(monkeypatch):
    torch.manual_seed(0)
    slots, features = torch.randn(2, 9, 12, dtype=torch.float64), torch.randn(2, 30, 12, dtype=torch.float64)
    scale = torch.tensor(0.7, dtype=torch.float64)
    wrt = [x.requires_grad_() for x in (slots, features, scale)]
    mix = torch.randn(12, 12, dtype=torch.float64)
    slope = torch.randn_like(features)

    def passed():
        clustered, dispatch = soft_cluster(slots, features, scale)
        out = dispatch(clustered @ mix)
        return out.detach(), *torch.autograd.grad(out, wrt, slope)

    want = passed()
    monkeypatch.setattr(cluster_triton, "serves", lambda *_: True)
    for plain in (gather, gather_back, scatter, scatter_back):
        monkeypatch.setattr(cluster_triton, plain.__name__, plain)
    monkeypatch.setattr(parts, "add_up", add_up)
    torch.testing.assert_close(passed(), want, rtol=1e-10, atol=1e-12)


def test_a_kernel_serves_few_slots_and_enough_programs(monkeypatch):
    class Somewhere:
        is_cuda = True

        def __init__(self, images, count, channels, dtype=torch.bfloat16):
            self.shape, self.dtype = (images, count, channels), dtype

    def serves(images=2, positions=256, slots=16, channels=64, dtype=torch.bfloat16):
        return cluster_triton.serves(
            Somewhere(images, slots, channels, dtype), Somewhere(images, positions, channels, dtype)
        )

    monkeypatch.setattr(cluster_triton, "INSTALLED", True)
    monkeypatch.setattr(cluster_triton, "shared_memory", lambda _: 232_448)
    assert not serves()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert serves()
    assert serves(slots=64, channels=256)
    assert serves(images=128, positions=3136)
    assert not serves(positions=3136)
    assert not serves(slots=81)
    assert not serves(channels=384)
    assert not serves(dtype=torch.float32)
    with torch.no_grad():
        assert not serves()
    monkeypatch.setattr(cluster_triton, "shared_memory", lambda _: 101_376)
    assert serves(slots=64, channels=128)
    assert not serves(slots=64, channels=129)
    monkeypatch.setattr(cluster_triton, "shared_memory", lambda _: 65_536)
    assert not serves()
