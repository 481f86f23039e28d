"""The views of attention say the numbers of known attention, and what cannot be had."""

import json
import math

import numpy as np
import pytest
import timm
import torch

import saccade
from saccade.explanation.capture import Captured, Softmax, capture
from saccade.explanation.views.attention import attention_view, density_view, threshold
from saccade.explanation.views.scaling import scaling_view

PIXELS = [np.full((64, 64, 3), 120, np.uint8)] * 2


def captured_of(query_scale: float) -> Captured:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, embed_dim=32, depth=3, num_heads=2).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(query_scale)
            block.attn.qkv.bias.mul_(query_scale)
        return capture(model, torch.randn(2, 3, 64, 64))


def test_numbers_of_uniform_attention():
    for view in density_view(captured_of(0.0), 2):
        assert view.absent is None
        for row in view.numbers["layers"]:
            assert row["entropy"] == pytest.approx(math.log(17), abs=1e-5)
            assert row["entropy_15"] == pytest.approx(row["entropy_bound"], abs=1e-5)
            assert row["entropy_class_token"] == pytest.approx(math.log(17), abs=1e-5)
            assert row["jacobian"] == pytest.approx(1 - 1 / 17, abs=1e-6)
            assert row["jacobian_paper"] == pytest.approx((1 - 1 / 17) / 4, abs=1e-6)  # heads are 16 wide
            assert row["distance"] == pytest.approx(2 * (4 - 1 / 4) / 12, abs=1e-6)
        json.dumps(view.numbers, allow_nan=False)


def test_sparse_attention_has_less_entropy_than_dense():
    dense, sparse = (density_view(captured_of(scale), 1)[0].numbers["layers"] for scale in (0.1, 100.0))
    for one, other in zip(dense, sparse, strict=True):
        assert other["entropy"] < one["entropy"] <= one["entropy_bound"] + 1e-5
        assert other["entropy_15"] <= other["entropy"]


def test_threshold_keeps_the_fewest_places_that_hold_the_share():
    weights = np.array([[0.5, 0.2], [0.2, 0.1]])
    kept, places = threshold(weights, 0.6)
    assert places == 0.5
    assert kept[0, 0] == 1.0
    assert (kept > 0).sum() == 2
    assert threshold(weights, 0.5)[1] == 0.25
    assert threshold(np.full((10, 10), 0.01), 0.6)[1] == pytest.approx(0.6)
    assert threshold(np.zeros((2, 2)))[1] == 0


def test_map_lies_where_the_weight_is():
    captured = captured_of(0.0)
    first = torch.zeros_like(captured.attention[0].first)
    first[..., 1 + 2 * 4 + 3] = 1.0  # third row, fourth column; the class token stands before the words
    object.__setattr__(captured.attention[0], "first", first)
    figure = attention_view(captured, PIXELS)[0].figures[0]
    drawn = figure.pixels[:, -256:].astype(int)  # the right half of the two
    lit = (np.abs(drawn - 40).sum(-1) > 0).nonzero()
    assert figure.numbers["places"] == pytest.approx(1 / 16)
    assert (lit[0].min(), lit[0].max(), lit[1].min(), lit[1].max()) == (128, 191, 192, 255)
    assert figure.layer == "blocks.0.attn"
    assert figure.depth == 0


def test_view_says_why_there_is_nothing():
    nothing = Captured(
        other=[Softmax("mixer", (1, 2, 3), "the clustering of a map into slots")], unheard=["a.performer"]
    )
    for view in (density_view(nothing, 1)[0], attention_view(nothing, PIXELS[:1])[0]):
        assert "clustering" in view.absent
        assert "a.performer" in view.absent
        assert not view.figures


def test_windows_are_measured_and_not_drawn():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(2,), num_heads=(3,), num_classes=2
    ).eval()
    captured = capture(model, torch.randn(1, 3, 56, 56))
    density, maps = density_view(captured, 1)[0], attention_view(captured, [np.zeros((56, 56, 3), np.uint8)])[0]
    assert [row["windows"] for row in density.numbers["layers"]] == [4, 4]
    assert "windows" in maps.absent


def test_scaling_view_needs_cb_s():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=16, num_heads=2, depth=2)
    assert "ContextBroadcast(scale=True)" in scaling_view(model, 1)[0].absent
    saccade.attach(model, saccade.ContextBroadcast(scale=True, layers="all"))
    view = scaling_view(model, 2)[1]
    assert [row["ratio"] for row in view.numbers["layers"]] == [None, None]  # weights of zero have no ratio
    json.dumps(view.numbers, allow_nan=False)


def test_heads_are_drawn_one_by_one():
    captured = captured_of(1.0)
    layer = captured.attention[0]
    first = torch.zeros_like(layer.first)
    first[:, :, 0, 1] = 1.0  # the first head looks at one place, the others at all alike
    first[:, :, 1:, 1:] = 1 / 16
    object.__setattr__(layer, "first", first)
    figure = attention_view(captured, PIXELS, heads="all")[0].figures[0]
    heads = figure.numbers["heads"]
    assert [one["head"] for one in heads] == list(range(layer.heads))
    assert heads[0]["places"] == pytest.approx(1 / 16)
    assert heads[1]["places"] == pytest.approx(10 / 16)
    one = attention_view(captured, PIXELS, heads=[1])[0].figures[0]
    assert [entry["head"] for entry in one.numbers["heads"]] == [1]
    assert attention_view(captured, PIXELS)[0].figures[0].numbers["heads"] == []


def test_a_head_that_is_not_there_is_refused():
    captured = captured_of(1.0)
    with pytest.raises(ValueError, match=r"heads=\[7\]: blocks\.0\.attn has 2 heads"):
        attention_view(captured, PIXELS, heads=[7])
    with pytest.raises(ValueError, match="heads='every'"):
        attention_view(captured, PIXELS, heads="every")
