import numpy as np
import pytest
import timm
import torch
from torch import nn

import saccade  # noqa: F401
from saccade.explanation.views.slots import draw_all, pick_slots, read_slots, slots_over_checkpoints, slots_view
from saccade.layers.slots import SlotMixer


def nano(seed=0, **options):
    torch.manual_seed(seed)
    return timm.create_model("glnet_nano", img_size=32, num_classes=4, **options).eval()


@pytest.fixture(scope="module")
def model():
    return nano()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32)


@pytest.fixture
def pixels():
    return [np.full((32, 32, 3), 90, dtype=np.uint8)] * 2


def test_every_block_with_slots_has_a_figure(model, images, pixels):
    views = slots_view(model, images, pixels)
    blocks = [path for path, module in model.named_modules() if isinstance(module, SlotMixer)]
    for view in views:
        assert [figure.layer for figure in view.figures] == blocks
        assert [figure.depth for figure in view.figures] == list(range(len(blocks)))
        for figure in view.figures:
            stands_for = [entry["stands_for"] for entry in figure.numbers["representatives"]]
            assert len(stands_for) == 4
            assert sum(stands_for) == figure.numbers["slots"]
            assert 0 < figure.numbers["focus"] <= 1


def test_weights_of_every_slot_sum_to_one_over_places(model, images):
    for block in read_slots(model, images):
        np.testing.assert_allclose(block.weights.sum((2, 3)), 1, rtol=1e-5)


def test_assignment_follows_two_regions_known_by_hand():
    mixer = SlotMixer(2, num_heads=1, num_slots=4).eval()
    assert isinstance(mixer.scale, nn.Parameter)
    with torch.no_grad():
        mixer.scale.fill_(20.0)
    features = torch.zeros(1, 4, 6, 2)
    features[:, :, :3, 0] = 1.0  # the left half is one thing, the right half another
    features[:, :, 3:, 1] = 3.0

    class Host(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = mixer

        def forward(self, x):
            return self.mixer(x.flatten(1, 2), x.flatten(1, 2), x.shape[1:3]).mean(1)

    (block,) = read_slots(Host(), features)
    left = block.weights[0, :, :, :3].sum((1, 2))
    np.testing.assert_allclose(left, [1, 0, 1, 0], atol=1e-6)  # slots lie on a grid of 2 x 2 cells
    labels = block.labels[0]
    assert set(labels[:, :3].ravel()) <= {0, 2}
    assert set(labels[:, 3:].ravel()) <= {1, 3}
    chosen, nearest = pick_slots(block.weights[0], 2)
    assert nearest[0] == nearest[2] != nearest[1] == nearest[3]
    assert len(chosen) == 2


def test_hard_clustering_puts_every_place_into_its_own_slot(images):
    for block in read_slots(nano(clustering="kmeans"), images):
        own = np.take_along_axis(block.weights, block.labels[:, None], axis=1)
        assert (own > 0).all()


def test_learned_slots_have_maps_too(images, pixels):
    assert slots_view(nano(slots="learned", num_slots=6), images, pixels)[0].numbers["layers"][0]["slots"] == 6


def test_model_answers_as_before_and_keeps_its_mode(model, images, pixels):
    with torch.no_grad():
        before = model(images)
    model.train()
    slots_view(model, images, pixels)
    assert model.training
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(images), before)


def test_checkpoints_are_shown_in_rows_with_the_slots_of_the_latest(images, pixels):
    models = [("step 1", nano(1)), ("step 2", nano(2)), ("step 3", nano(3))]
    views = slots_over_checkpoints(models, images, pixels, note="Only three were kept.")
    (figure,) = views[1].figures
    rows = figure.numbers["checkpoints"]
    assert [row["checkpoint"] for row in rows] == ["step 1", "step 2", "step 3"]
    followed = [[entry["slot"] for entry in row["representatives"]] for row in rows]
    assert followed[0] == followed[1] == followed[2]
    latest = read_slots(models[-1][1], images, layer=figure.layer)[0]
    assert followed[2] == pick_slots(latest.weights[1])[0].tolist()
    assert "Only three were kept." in views[0].about


def test_unknown_layer_is_refused(model, images):
    with pytest.raises(ValueError, match=r"stages\.0\.blocks\.0"):
        read_slots(model, images, layer="nowhere")


def test_model_without_slots_says_why(images, pixels):
    other = nn.Flatten()
    assert "glnet" in slots_view(other, images, pixels)[1].absent
    assert "glnet" in slots_over_checkpoints([("a", other)], images, pixels)[1].absent
    assert "no checkpoints" in slots_over_checkpoints([], images, pixels)[0].absent


def test_all_maps_lie_in_row_major_order():
    weights = np.zeros((4, 2, 2))
    weights[1, 0, 0] = 1.0
    drawn = draw_all(weights, size=22)
    assert drawn.shape == (22, 22, 3)
    assert drawn[2, 13].sum() > 600  # first row, second map, its upper left cell
    assert drawn[2, 2].sum() < 200
    assert drawn[13, 2].sum() < 200


def test_a_block_is_chosen_by_number_or_path(images, pixels):
    models = [("step 1", nano(1)), ("step 2", nano(2))]
    names = [block.layer for block in read_slots(models[0][1], images)]
    for number, name in enumerate(names, start=1):
        for layer in (number, name, name.removesuffix(".mixer.global_branch")):
            (figure,) = slots_over_checkpoints(models, images, pixels, layer=layer)[0].figures
            assert figure.layer == name
    with pytest.raises(ValueError, match=f"a number from 1 to {len(names)}"):
        read_slots(models[0][1], images, layer=len(names) + 1)


def test_the_middle_block_of_stl_is_the_fifth_as_in_the_paper():
    model = timm.create_model("glnet_stl", num_classes=3, dims=(32, 32, 32, 32), num_slots=4).eval()
    (block,) = read_slots(model, torch.randn(1, 3, 64, 64), middle=True)
    assert block.layer == "stages.2.blocks.0.mixer.global_branch"
    assert block.layer == read_slots(model, torch.randn(1, 3, 64, 64), layer=5)[0].layer
