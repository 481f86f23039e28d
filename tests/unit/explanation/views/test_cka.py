"""CKA against its definition, by the properties that make it what it is, and by minibatches against all at once."""

from itertools import permutations

import numpy as np
import pytest
import timm
import torch
from torch import nn

import saccade  # noqa: F401
from saccade.explanation.views.cka import brief_names, cka, cka_view, hsic, linear_kernel
from saccade.plugins.tokens import find_layers


class Two(nn.Module):
    """Two layers side by side, of which the second makes something of the first's features."""

    def __init__(self, make=nn.Identity):
        super().__init__()
        self.first, self.second = nn.Flatten(), nn.Sequential(nn.Flatten(), make())

    def forward(self, x):
        return self.first(x), self.second(x)


def between(make, images, **options) -> float:
    return cka(Two(make), images, layers=["first", "second"], **options).values[0, 1]


def test_hsic_is_the_mean_over_all_distinct_quadruples():
    torch.manual_seed(0)
    K, L = (linear_kernel(torch.randn(6, 3, dtype=torch.float64)) for _ in range(2))
    quads = list(permutations(range(6), 4))
    total = sum(K[i, j] * L[i, j] + K[i, j] * L[q, r] - 2 * K[i, j] * L[i, q] for i, j, q, r in quads)
    torch.testing.assert_close(hsic(K, L), total / len(quads))


def test_full_definition_holds_for_one_batch():
    torch.manual_seed(0)
    images = torch.randn(12, 1, 3, 3)
    matrix = torch.randn(9, 5)

    def make():
        layer = nn.Linear(9, 5, bias=False)
        layer.weight = nn.Parameter(matrix.T)
        return layer

    x = images.flatten(1).double()
    K, L = x @ x.T, (x @ matrix.double()) @ (x @ matrix.double()).T
    expected = hsic(K, L) / (hsic(K, K) * hsic(L, L)).sqrt()
    assert between(make, images, batch_size=12) == pytest.approx(expected.item(), abs=1e-6)


def test_layer_is_like_itself_turned_scaled_or_moved():
    torch.manual_seed(0)
    images = torch.randn(40, 1, 4, 4)
    rotation = torch.linalg.qr(torch.randn(16, 16))[0]

    class Turned(nn.Module):
        def forward(self, x):
            return 7 * x @ rotation + 3

    assert between(nn.Identity, images) == pytest.approx(1, abs=1e-9)
    assert between(Turned, images) == pytest.approx(1, abs=1e-5)


def test_unrelated_features_have_no_similarity():
    torch.manual_seed(0)

    class Noise(nn.Module):
        def forward(self, x):
            return torch.randn(len(x), 16)

    assert abs(between(Noise, torch.randn(512, 1, 4, 4), batch_size=512)) < 0.05


def test_minibatches_agree_with_all_at_once_within_the_stated_error():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, num_heads=2, depth=4)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(20)  # so that blocks do change what they are given
    images = torch.randn(8, 3, 32, 32)[torch.randint(8, (256,))] + 0.5 * torch.randn(256, 3, 32, 32)
    parts, whole = cka(model, images, batch_size=32), cka(model, images, batch_size=256)
    assert (parts.batches, whole.batches) == (8, 1)
    assert whole.errors is None
    assert np.abs(parts.values - whole.values).max() < 4 * parts.errors.max() + 1e-9
    assert whole.values.min() < 0.9
    assert parts.errors.max() < 0.03
    np.testing.assert_allclose(np.diag(parts.values), 1, atol=1e-9)
    np.testing.assert_allclose(parts.values, parts.values.T, atol=1e-12)


def test_two_models_of_different_depth_and_classes_are_compared():
    small = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, num_heads=2, depth=2, num_classes=3
    )
    images = torch.randn(8, 3, 32, 32)
    found = cka(small, images, other=timm.create_model("resnet10t", num_classes=7))
    assert found.rows == ("blocks.0", "blocks.1")
    assert found.columns == ("layer1.0", "layer2.0", "layer3.0", "layer4.0")
    assert found.values.shape == (2, 4)


def test_comparison_with_an_equal_model_is_comparison_with_itself():
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 3}
    model, twin = (timm.create_model("vit_tiny_patch16_224", **options) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    images = torch.randn(16, 3, 32, 32)
    np.testing.assert_allclose(cka(model, images, other=twin).values, cka(model, images).values, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "first"),
    [("glnet_nano", "stages.0"), ("nommer_tiny", "stages.0"), ("convnext_atto", "stages.0"), ("resnet10t", "layer1.0")],
)
def test_layers_are_the_blocks_in_order(name, first):
    layers = find_layers(timm.create_model(name))
    assert layers[0].startswith(first)
    assert len(layers) > 3


def test_too_few_images_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match="at least 4"):
        cka(Two(), torch.randn(3, 1, 2, 2), layers=["first"])
    view = cka_view(Two(), torch.randn(1, 1, 2, 2), 1)[0]
    assert "--data" in view.absent


def test_view_holds_the_numbers_it_draws():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, num_heads=2, depth=2)
    views = cka_view(model, torch.randn(8, 3, 32, 32), 2, other=model, names=("one", "two"))
    assert len(views) == 2
    assert [figure.key for figure in views[0].figures] == ["cka-0", "cka-1"]
    for figure in views[0].figures:
        assert figure.numbers["values"][0][0] == pytest.approx(1)
        assert "rough estimate" in figure.caption


@pytest.mark.parametrize(
    ("names", "brief"),
    [
        (["blocks.0", "blocks.1"], ["0", "1"]),
        (["stages.0.blocks.1", "stages.3.blocks.1"], ["0.1", "3.1"]),
        (["layer1.0", "layer2.0"], ["layer1.0", "layer2.0"]),
        (["stem", "stem.conv"], ["stem", "stem.conv"]),
    ],
)
def test_names_beside_the_map_are_short_and_different(names, brief):
    assert brief_names(names) == brief


def test_biased_estimate_is_the_papers_definition_over_all_images():
    torch.manual_seed(0)
    images = torch.randn(40, 1, 3, 3)
    matrix = torch.randn(9, 5)

    def make():
        layer = nn.Linear(9, 5, bias=False)
        layer.weight = nn.Parameter(matrix.T)
        return layer

    x, y = images.flatten(1).double(), images.flatten(1).double() @ matrix.double()
    H = torch.eye(40, dtype=torch.float64) - torch.ones(40, 40, dtype=torch.float64) / 40
    K, L = H @ x @ x.T @ H, H @ y @ y.T @ H
    expected = (K * L).sum() / ((K * K).sum() * (L * L).sum()).sqrt()
    assert between(make, images, estimator="biased") == pytest.approx(expected.item(), abs=1e-6)


def test_biased_estimate_of_nothing_in_common_is_too_high():
    torch.manual_seed(0)

    class Noise(nn.Module):
        def forward(self, x):
            return torch.randn(len(x), 200)

    images = torch.randn(16, 1, 10, 10)
    assert between(Noise, images, estimator="biased") > 0.5
    assert abs(between(Noise, images, batch_size=16)) < 0.3
    with pytest.raises(ValueError, match="estimator='best'"):
        between(Noise, images, estimator="best")
