"""The numbers of attention against cases that can be computed by hand."""

import math

import pytest
import timm
import torch
from torch import nn

import saccade
from saccade.explanation.maps import (
    attended_distance,
    cell_centres,
    city_block,
    entropy,
    jacobian_norm,
    relative_distance,
    spread,
)
from saccade.explanation.views.scaling import scaling_weights


def test_entropy_of_uniform_attention_is_log_n_and_of_one_hot_zero():
    for count in (2, 49, 197):
        torch.testing.assert_close(entropy(torch.full((3, count), 1 / count)), torch.full((3,), math.log(count)))
    assert torch.equal(entropy(torch.eye(6)), torch.zeros(6))


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_jacobian_norm_is_that_of_autograd(scale):
    torch.manual_seed(0)
    scores = torch.randn(7, dtype=torch.float64) * 3
    jacobian = torch.autograd.functional.jacobian(lambda s: (scale * s).softmax(-1), scores)
    expected = torch.linalg.svdvals(jacobian).sum()
    torch.testing.assert_close(jacobian_norm((scale * scores).softmax(-1), scale=scale), expected)


def test_jacobian_norm_is_largest_at_uniform_attention():
    assert jacobian_norm(torch.full((10,), 0.1)).item() == pytest.approx(0.9)
    assert jacobian_norm(torch.eye(10)).abs().max() == 0


def test_distance_of_known_maps():
    grid = (3, 4)
    places = cell_centres(grid)
    apart = city_block(places, places)
    assert torch.equal(attended_distance(torch.eye(12), apart), torch.zeros(12))  # each looks at itself
    right = torch.zeros(12, 12)
    for cell in range(12):
        right[cell, cell + 1 if cell % 4 < 3 else cell - 1] = 1.0  # each looks at a neighbour in its row
    torch.testing.assert_close(attended_distance(right, apart), torch.full((12,), 1 / 4))
    below = torch.zeros(12, 12)
    for cell in range(12):
        below[cell, (cell + 4) if cell < 8 else cell - 4] = 0.5  # half of the weight is not on the grid
    torch.testing.assert_close(attended_distance(below, apart), torch.full((12,), 1 / 3))


def test_mean_distance_of_uniform_attention_is_that_of_random_places():
    # |x - y| of two independent uniform places is 1/3 a side on a fine grid, n: (n - 1/n) / 3n.
    side = 20
    places = cell_centres((side, side))
    uniform = torch.full((side**2, side**2), 1 / side**2)
    expected = 2 * (side - 1 / side) / (3 * side)
    torch.testing.assert_close(
        attended_distance(uniform, city_block(places, places)).mean(), torch.tensor(expected), atol=1e-5, rtol=0
    )


def test_papers_distance_is_the_mean_over_pairs():
    places = cell_centres((2, 2), ends=True)  # the corners of the unit square
    apart = city_block(places, places)
    assert apart[0].tolist() == [0, 1, 1, 2]
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 4)
    total = sum(weights[i, j] * apart[i, j] for i in range(4) for j in range(4) if i != j)
    torch.testing.assert_close(relative_distance(weights, apart), total / 12)
    assert relative_distance(torch.ones(1, 1), torch.zeros(1, 1)).isnan()


def test_grids_of_different_fineness_cover_the_same_image():
    fine, coarse = cell_centres((4, 4)), cell_centres((2, 2))
    assert coarse.tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    torch.testing.assert_close(fine.mean(0), coarse.mean(0))


def test_spread_is_mean_and_quantiles_of_finite_numbers():
    values = torch.tensor([float("nan"), *range(101)])
    mean, (low, high) = spread(values)
    assert (mean, low, high) == (50.0, pytest.approx(15.0), pytest.approx(85.0))
    assert math.isnan(spread(torch.tensor([float("nan")]))[0])


def test_scaling_weights_of_cb_s_by_depth():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=16, num_heads=2, depth=4)
    saccade.attach(model, saccade.ContextBroadcast(scale=True, layers="all"))
    found = scaling_weights(model)
    assert len(found) == 4
    assert all(math.isnan(row.ratio) and row.mean == 0 for row in found)  # all zero to begin with
    scales = [p for name, p in model.named_parameters() if name.endswith("scale")]
    with torch.no_grad():
        scales[1].copy_(torch.linspace(-1, 1, 16))
        scales[2].fill_(-0.5)
    found = scaling_weights(model)
    sizes = torch.linspace(-1, 1, 16).abs()
    low, high = torch.quantile(sizes, 0.1), torch.quantile(sizes, 0.9)
    assert found[1].ratio == pytest.approx((low / high).item())
    assert found[1].mean == pytest.approx(0, abs=1e-6)
    assert (found[2].mean, found[2].ratio) == (-0.5, 1.0)


def test_models_without_cb_s_have_no_scaling_weights():
    assert scaling_weights(nn.Linear(2, 2)) == []
