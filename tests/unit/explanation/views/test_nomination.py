import numpy as np
import pytest
import timm
import torch
from torch import nn

import saccade  # noqa: F401
from saccade.explanation.views.nomination import nomination_view, read_nominations
from saccade.layers.nominate import Nominator


@pytest.fixture(scope="module")
def nommer():
    torch.manual_seed(0)
    return timm.create_model("nommer_tiny", num_classes=4, embed_dim=16).eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 224, 224)


@pytest.fixture(scope="module")
def views(nommer, images):
    return nomination_view(nommer, images, [np.full((224, 224, 3), 128, dtype=np.uint8)] * 2)


def test_shares_of_every_layer_sum_to_one(views):
    for view in views:
        assert len(view.numbers["layers"]) == 4
        for row in view.numbers["layers"]:
            for kind in ("hard", "soft"):
                assert list(row[kind]) == ["cnn", "window", "global"]
                assert sum(row[kind].values()) == pytest.approx(1, abs=1e-12)


def test_figures_carry_layer_and_depth_in_order(views):
    layers = [figure for figure in views[0].figures if figure.depth is not None]
    assert [figure.depth for figure in layers] == [0, 1, 2, 3]
    assert layers[0].layer == "stages.0.blocks.0.mixer.nominator"
    assert len({figure.key for figure in views[0].figures}) == len(views[0].figures)
    assert views[0].figures[-1].chart is not None


def test_shares_are_those_of_what_the_network_nominates(nommer, images):
    taps = [module.nomination for module in nommer.modules() if isinstance(module, Nominator)]
    heard = []
    hooks = [tap.register_forward_hook(lambda _m, _a, out: heard.append(out)) for tap in taps]
    with torch.no_grad():
        before = nommer(images)
    for hook in hooks:
        hook.remove()
    for layer, used in zip(read_nominations(nommer, images), heard, strict=True):
        assert layer.used == "hard"
        np.testing.assert_array_equal(layer.hard, used.numpy())
        np.testing.assert_array_equal(layer.hard.argmax(-1), layer.soft.argmax(-1))
    with torch.no_grad():
        assert torch.equal(nommer(images), before)


class Fixed(nn.Module):
    """Three flat candidates and scores that are known."""

    def __init__(self, nomination="soft"):
        super().__init__()
        self.nominator = Nominator(1, nomination=nomination, temperature=2.0)

    def forward(self, x):
        x = x[:, :1].permute(0, 2, 3, 1)
        return self.nominator([x, x, x]).mean((1, 2))


def test_maps_and_shares_match_hand_computed_scores():
    model = Fixed().eval()
    with torch.no_grad():
        model.nominator.fc.weight.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
        model.nominator.fc.bias.zero_()
    images = torch.zeros(1, 1, 2, 4)
    images[..., :1], images[..., 1:] = 2.0, -2.0  # the three sum to 6 and -6: left quarter cnn, the rest global
    view = nomination_view(model, images, [np.zeros((224, 448, 3), dtype=np.uint8)])[0]
    (row,) = view.numbers["layers"]
    assert row["grid"] == [2, 4]
    assert row["network"] == "soft"
    assert row["hard"] == pytest.approx({"cnn": 0.25, "window": 0.0, "global": 0.75})
    likely = np.exp([3.0, 0.0, -3.0]) / np.exp([3.0, 0.0, -3.0]).sum()  # 6 / temperature
    want = 0.25 * likely + 0.75 * likely[::-1]
    np.testing.assert_allclose(list(row["soft"].values()), want, rtol=1e-6)
    drawn = view.figures[0].pixels[16:, 448 + 4 : 2 * 448 + 4]  # the hard map, after the image
    assert drawn[0, 0].tolist() == [153, 0, 0]
    assert drawn[0, 447].tolist() == [0, 0, 153]


def test_training_mode_and_statistics_are_left_alone(images):
    model = Fixed().train()
    model.nominator.eval()
    nomination_view(model, images[:, :, :8, :8], [np.zeros((8, 8, 3), dtype=np.uint8)] * 2)
    assert model.training
    assert not model.nominator.training
    assert not model.nominator.scores._forward_hooks


def test_model_without_nominators_says_why():
    views = nomination_view(nn.Flatten(), torch.zeros(2, 3, 8, 8), [np.zeros((8, 8, 3), dtype=np.uint8)] * 2)
    assert len(views) == 2
    assert "nommer_tiny" in views[0].absent
    assert not views[0].figures
