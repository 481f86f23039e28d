import itertools

import pytest
import torch

from saccade.layers import relative_location
from saccade.layers.relative_location import (
    PairLocator,
    draw_pairs,
    locate_loss,
    offsets,
    pool_map,
    pooled_grid,
    take,
)
from support.golden import integers, part, part_state_dict, read, tensor

L1 = ["l1.abs1.norm0", "l1.abs1.norm1", "l1.abs0.norm0", "l1.abs0.norm1"]
CLASSES = [f"{mode}.abs{a}.out{n}" for mode in ("ce", "cbr") for a in (0, 1) for n in (7, 14)]


def published_pairs(side, batch, count):
    """The golden files' positions, rows and columns, as indices of cells: B, M, 2."""
    places = (integers(f"drloc/{name}/k{side}/n{batch}/m{count}", side, (batch, count, 2)) for name in ("pos1", "pos2"))
    return torch.stack([torch.from_numpy(p[..., 0] * side + p[..., 1]) for p in places], -1)


def published_cells():
    return tensor("drloc_parts/x", (3, 24, 7, 7)).double().flatten(2).transpose(1, 2)


def published_locator(name):
    record, arrays = part("drloc_parts", name)
    state = part_state_dict(record)
    names = {"layers.0": "fc1", "layers.2": "fc2", "layers.4": "fc3", "unshared.0": "axes.0", "unshared.1": "axes.1"}
    state = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value for key, value in state.items()}
    count = state["axes.0.bias"].shape[0] if "axes.0.bias" in state else None
    locator = PairLocator(24, classes=count and (count, count)).double()
    locator.load_state_dict(state)
    return locator, record, arrays


def close(got, want):
    torch.testing.assert_close(got, want.to(got.dtype), rtol=1e-9, atol=1e-9)


def test_positions_are_those_of_the_golden_file():
    _, arrays = read("drloc_parts")
    both = torch.stack([torch.from_numpy(arrays[f"positions.{name}"]) for name in ("pos1", "pos2")], 2)  # B, M, 2, 2
    assert torch.equal(published_pairs(7, 3, 16), both[..., 0] * 7 + both[..., 1])


def test_cells_are_picked_as_published():
    _, arrays = read("drloc_parts")
    got = take(published_cells(), published_pairs(7, 3, 16)[..., 0]).transpose(1, 2)
    assert torch.equal(got, torch.from_numpy(arrays["gather.slow"]))
    assert torch.equal(got, torch.from_numpy(arrays["gather.fast"]))


@pytest.mark.parametrize("name", L1)
def test_offsets_predictions_and_l1_are_the_published_ones(name):
    locator, record, arrays = published_locator(name)
    pairs = published_pairs(7, 3, 16)
    predicted = locator(published_cells(), pairs)
    close(predicted.flatten(0, 1), arrays["pred"])
    signed = not record["constructor"]["use_abs"]
    unit = "span" if record["normalize"] else "cells"
    target = offsets(pairs, (7, 7), signed=signed, unit=unit, dtype=torch.float64)
    close(target.flatten(0, 1).double(), arrays["delta"])
    close(locate_loss(predicted, target), arrays["loss"])


def test_offsets_in_sides_give_the_papers_l1():
    locator, _, _ = published_locator("l1.abs1.norm0")
    pairs = published_pairs(7, 3, 16)
    _, arrays = read("drloc_parts")
    loss = locate_loss(locator(published_cells(), pairs), offsets(pairs, (7, 7), unit="sides", dtype=torch.float64))
    close(loss, torch.from_numpy(arrays["paper_l1.loss"]))


@pytest.mark.parametrize("name", CLASSES)
def test_logits_and_losses_on_classes_are_the_published_ones(name):
    locator, record, arrays = published_locator(name)
    pairs = published_pairs(7, 3, 16)
    predicted = locator(published_cells(), pairs)
    close(torch.stack(predicted, -1).flatten(0, 1), arrays["pred"])
    target = offsets(pairs, (7, 7), signed=not record["constructor"]["use_abs"])
    close(target.flatten(0, 1), arrays["delta"])
    if name.startswith("ce"):
        close(locate_loss(predicted, target, loss="cross_entropy"), arrays["loss"])
    else:
        close(locate_loss(predicted, target, loss="gaussian"), arrays["loss_mse_var"])
        close(locate_loss(predicted, target, loss="square"), arrays["loss_mse"])


def test_prior_on_the_deviation_weighs_half_of_that_on_the_variance():
    logits = [torch.randn(2, 5, 7, dtype=torch.float64) for _ in range(2)]
    target = torch.randint(7, (2, 5, 2))
    deviation, variance, none = (
        locate_loss(logits, target, loss="gaussian", prior=prior, prior_on=on)
        for prior, on in ((0.1, "deviation"), (0.1, "variance"), (0.0, "variance"))
    )
    torch.testing.assert_close(deviation - none, (variance - none) / 2)


@pytest.mark.parametrize("count", [7, 300], ids=["fewer pairs than cells", "more pairs than cells"])
def test_both_orders_of_the_first_layer_equal_the_concatenation(count):
    locator = PairLocator(12).double()
    cells, pairs = torch.randn(2, 20, 12, dtype=torch.float64, requires_grad=True), torch.randint(20, (2, count, 2))
    one, two = (torch.stack([sample[i] for sample, i in zip(cells, side, strict=True)]) for side in pairs.unbind(-1))
    plain = locator.fc3(locator.fc2(locator.fc1(torch.cat([one, two], -1)).relu()).relu())
    got = locator(cells, pairs)
    torch.testing.assert_close(got, plain)
    wanted = torch.autograd.grad(plain.square().sum(), [cells, *locator.parameters()])
    for a, b in zip(torch.autograd.grad(got.square().sum(), [cells, *locator.parameters()]), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_cells_of_a_fine_grid_are_picked_as_those_of_a_coarse_one(monkeypatch):
    rows, index = torch.randn(2, 30, 4, requires_grad=True), torch.randint(30, (2, 50))
    product = take(rows, index)
    monkeypatch.setattr(relative_location, "MOST_BY_PRODUCT", 0)
    indexed = take(rows, index)
    assert torch.equal(product, indexed)
    one, two = (torch.autograd.grad(x.square().sum(), rows)[0] for x in (product, indexed))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("grid", [(3, 5), (5, 3), (1, 4), (7, 7)], ids=str)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("unit", ["cells", "sides", "span"])
def test_offsets_equal_brute_force_on_any_grid(grid, signed, unit):
    places = list(itertools.product(range(grid[0]), range(grid[1])))
    pairs = torch.tensor(list(itertools.product(range(len(places)), repeat=2)))[None]
    got = offsets(pairs, grid, signed=signed, unit=unit)
    for axis, side in enumerate(grid):
        for (first, second), value in zip(pairs[0].tolist(), got[0, :, axis].tolist(), strict=True):
            offset = places[first][axis] - places[second][axis]
            offset = offset if signed else abs(offset)
            shift = side - 1 if signed else 0
            wanted = {
                "cells": offset + shift,
                "sides": offset / side,
                "span": (offset + shift) / max(side - 1 + shift, 1),
            }[unit]
            assert value == pytest.approx(wanted)


def test_every_offset_has_a_class_and_no_class_is_left_over():
    pairs = torch.cartesian_prod(torch.arange(15), torch.arange(15))[None]
    for signed, classes in ((False, (3, 5)), (True, (5, 9))):
        for target, count in zip(offsets(pairs, (3, 5), signed=signed).unbind(-1), classes, strict=True):
            assert target.unique().tolist() == list(range(count))


def test_losses_see_the_order_of_a_pair_only_where_directions_count():
    pairs = draw_pairs(4, 100, device="cpu") % 15
    swapped = pairs.flip(-1)
    assert torch.equal(offsets(pairs, (3, 5)), offsets(swapped, (3, 5)))
    ahead, back = (offsets(p, (3, 5), signed=True) - torch.tensor([2, 4]) for p in (pairs, swapped))
    assert torch.equal(ahead, -back)
    assert not torch.equal(ahead, back)


def test_prediction_depends_on_which_cell_comes_first():
    locator, cells = PairLocator(8), torch.randn(1, 6, 8)
    one, two = (locator(cells, torch.tensor([[pair]])) for pair in ([0, 1], [1, 0]))
    assert not torch.allclose(one, two)


def test_pairs_are_uniform_over_cells_and_independent():
    pairs = draw_pairs(50, 2000, device="cpu", generator=torch.Generator().manual_seed(0)) % 15
    assert pairs.dtype == torch.int64
    joint = torch.bincount((pairs[..., 0] * 15 + pairs[..., 1]).flatten(), minlength=225).double()
    expected = pairs[..., 0].numel() / 225
    assert ((joint - expected) ** 2 / expected).sum() < 300  # chi-square of 224 degrees: 99.95 % lie below


def test_pooling_of_14_is_the_published_average_without_padding():
    x = torch.randn(2, 3, 14, 14)
    got = pool_map(x, 7)
    assert got.shape[2:] == (7, 7)
    torch.testing.assert_close(got[..., 0, 0], x[..., :2, :2].mean((-2, -1)))  # the corner has four cells, not nine
    torch.testing.assert_close(got[..., 3, 3], x[..., 5:8, 5:8].mean((-2, -1)))


@pytest.mark.parametrize(
    ("grid", "left"),
    [
        ((14, 14), (7, 7)),
        ((7, 7), (7, 7)),
        ((12, 12), (6, 6)),
        ((16, 20), (8, 10)),
        ((56, 56), (7, 7)),
        ((9, 10), (9, 10)),
    ],
)
def test_grids_are_halved_until_nearest_to_the_side(grid, left):
    assert pool_map(torch.zeros(1, 1, *grid), 7).shape[2:] == left
    assert pooled_grid(grid, 7) == left
    assert pooled_grid(grid, None) == grid


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", ["l1", "cross_entropy", "gaussian", "square"])
def test_half_precision_is_compared_in_single(dtype, loss):
    leaves = [(4 * torch.randn(2, 9, 2 if loss == "l1" else 13)).to(dtype).requires_grad_() for _ in range(2)]
    target = torch.randint(13, (2, 9, 2))
    value, single = (
        locate_loss(predicted[0] if loss == "l1" else predicted, target, loss=loss)
        for predicted in (leaves, [leaf.float() for leaf in leaves])
    )
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, single)
    assert all(leaf.grad.isfinite().all() for leaf in leaves if leaf.grad is not None)


@pytest.mark.parametrize("loss", ["gaussian", "cross_entropy"])
def test_a_certain_prediction_keeps_its_gradient_finite(loss):
    logits = [torch.zeros(1, 1, 7).index_fill_(2, torch.tensor([1]), 1e4).requires_grad_() for _ in range(2)]
    value = locate_loss(logits, torch.tensor([[[5, 5]]]), loss=loss)
    value.backward()
    assert value.isfinite()
    assert all(p.grad.isfinite().all() for p in logits)


def test_paper_form_has_no_third_hidden_layer():
    published, paper = (PairLocator(8, classes=(3, 5), third_layer=third) for third in (True, False))
    extra = sum(p.numel() for p in published.parameters()) - sum(p.numel() for p in paper.parameters())
    assert extra == 512 * 513
    assert [p.shape for p in paper(torch.randn(2, 15, 8), torch.randint(15, (2, 4, 2)))] == [(2, 4, 3), (2, 4, 5)]
