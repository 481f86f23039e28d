import pytest
import torch

from saccade.config import AugmentConfig
from saccade.data import augment as module
from saccade.data.augment import (
    LEFT,
    PURPOSES,
    TOP,
    Augment,
    beta_quantiles,
    boxes,
    erase,
    identity,
    jitter,
    look_up,
    mirror,
    rand_colour,
    rand_geometry,
    resample,
    shift,
    throw,
)
from saccade.data.draws import key, uniform_number

ALL = AugmentConfig(rand_ops=2, erase=0.5, mixup=0.8, cutmix=1.0, jitter=0.3)


def batch(count=32, side=16, channels=3):
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)
    return pictures, torch.arange(count) % 5, key(0, 3, torch.arange(count))


def augment(config=ALL, **options):
    defaults = {"mean": [0.5] * 3, "std": [0.25] * 3, "num_classes": 5, "img_size": 16}
    return Augment(config, **(defaults | options))


def test_a_picture_looks_the_same_in_whatever_batch_it_comes():
    pictures, labels, keys = batch()
    images, targets = augment()(pictures, labels, keys)
    some, shares = augment()(pictures[8:20], labels[8:20], keys[8:20])
    assert torch.equal(images[8:20], some)
    assert torch.equal(targets[8:20], shares)


def test_another_epoch_looks_otherwise():
    pictures, labels, _ = batch()
    index = torch.arange(len(labels))
    first, _ = augment()(pictures, labels, key(0, 1, index))
    second, _ = augment()(pictures, labels, key(0, 2, index))
    assert (first != second).flatten(1).any(1).float().mean() > 0.9


def test_nothing_asked_for_leaves_normalised_pictures_and_plain_labels():
    pictures, labels, keys = batch()
    images, targets = augment(AugmentConfig(crop="none", flip=0.0))(pictures, labels, keys)
    torch.testing.assert_close(images, (pictures.float() / 255 - 0.5) / 0.25)
    assert torch.equal(targets, labels)


def test_shares_of_classes_sum_to_one_and_say_what_is_in_the_picture():
    config = AugmentConfig(crop="none", flip=0.0, cutmix=1.0)
    count = 64
    pictures = (torch.arange(count) % 5 * 50).to(torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16)
    labels = torch.arange(count) % 5
    images, targets = augment(config)(pictures, labels, key(0, torch.arange(count)))
    torch.testing.assert_close(targets.sum(1), torch.ones(count))
    painted = ((images * 0.25 + 0.5) * 255).round().div(50).long()[:, 0]  # the class each pixel came from
    for picture, share in zip(painted, targets, strict=True):
        counted = torch.bincount(picture.flatten(), minlength=5) / picture.numel()
        torch.testing.assert_close(counted, share, atol=1e-6, rtol=0)


def test_mixup_blends_neighbours_by_the_share_of_their_classes():
    pictures = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    pictures[1] = 255
    config = AugmentConfig(crop="none", flip=0.0, mixup=1.0)
    images, targets = augment(config)(pictures, torch.tensor([0, 1]), key(5, torch.arange(2)))
    bright = images.mean((1, 2, 3)) * 0.25 + 0.5
    torch.testing.assert_close(bright, targets[:, 1], atol=1e-5, rtol=0)


def test_the_last_picture_of_an_odd_batch_is_mixed_with_itself():
    pictures, labels, keys = batch(3)
    _, targets = augment(AugmentConfig(mixup=1.0))(pictures, labels, keys)
    torch.testing.assert_close(targets[2], torch.nn.functional.one_hot(labels[2], 5).float())


def test_smoothing_spreads_its_share():
    pictures, labels, keys = batch()
    _, targets = augment(AugmentConfig(), smoothing=0.1)(pictures, labels, keys)
    torch.testing.assert_close(targets.max(1).values, torch.full((32,), 0.9 + 0.02))


def test_weak_epochs_leave_out_what_is_strong():
    pictures, labels, keys = batch()
    config = AugmentConfig(crop="none", flip=0.0, rand_ops=2, erase=1.0, mixup=1.0)
    images, targets = augment(config)(pictures, labels, keys, strong=False)
    torch.testing.assert_close(images, (pictures.float() / 255 - 0.5) / 0.25)
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 5).float())


def test_shift_moves_by_the_drawn_number_of_pixels():
    pictures, _, keys = batch(8)
    dice = throw(keys)
    moved = shift(pictures, dice, pad=2, flip=0.0)
    for index in range(8):
        down, right = (int(dice[index, purpose] * 5) - 2 for purpose in (TOP, LEFT))
        rows = mirror(torch.arange(16) + down, 16)
        columns = mirror(torch.arange(16) + right, 16)
        assert torch.equal(moved[index], pictures[index][:, rows][:, :, columns])


def test_flip_mirrors_its_share_of_pictures():
    pictures, _, _ = batch(400, side=4)
    flipped = shift(pictures, throw(key(1, torch.arange(400))), pad=0, flip=0.25)
    turned = (flipped == pictures.flip(3)).flatten(1).all(1)
    assert torch.equal(flipped[~turned], pictures[~turned])
    assert 0.17 < turned.float().mean() < 0.33


def test_mirror_reflects_without_repeating_the_edge():
    assert mirror(torch.arange(-3, 8), 5).tolist() == [3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1]
    assert mirror(torch.arange(-2, 3), 1).tolist() == [0] * 5


def test_resampling_without_a_move_changes_nothing():
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(resample(images, identity(images), 9), images, atol=1e-6, rtol=0)


def test_rand_augment_moves_some_and_recolours_others():
    config = AugmentConfig(rand_ops=1)
    images = torch.rand(600, 3, 8, 8)
    dice = throw(key(2, torch.arange(600)))
    moved = (rand_geometry(dice, 32, config) - torch.eye(3)).abs().amax((1, 2)) > 1e-3
    coloured = (rand_colour(images, dice, 32, config) - images).abs().amax((1, 2, 3)) > 1e-3
    assert not (moved & coloured).any()
    assert 0.25 < moved.float().mean() < 0.47  # 5 of 14 operations
    assert coloured.float().mean() > 0.3
    assert rand_colour(images, dice, 32, config).min() >= 0
    assert rand_colour(images, dice, 32, config).max() <= 1


def test_stronger_magnitude_moves_further():
    dice = throw(key(2, torch.arange(600)))
    sizes = [
        (rand_geometry(dice, 32, AugmentConfig(rand_magnitude=m, rand_spread=0.0)) - torch.eye(3)).abs().mean()
        for m in (1.0, 5.0, 10.0)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


def test_erasing_paints_one_box_of_allowed_area():
    images = torch.full((400, 3, 32, 32), 9.0)
    erased = erase(images, throw(key(3, torch.arange(400))), 0.5)
    share = (erased != 9).any(1).float().mean((1, 2))
    assert 0.4 < (share > 0).float().mean() < 0.6
    assert share.max() < 0.4
    assert share[share > 0].min() > 0.01


def test_boxes_have_the_area_asked_for_when_kept_whole():
    side = torch.full((50,), 0.5)
    inside = boxes(throw(key(4, torch.arange(50))), 12, side, side, (20, 20), whole=True)
    assert (inside.sum((1, 2)) == 100).all()


def test_jitter_by_nothing_changes_nothing():
    images = torch.rand(4, 3, 5, 5)
    torch.testing.assert_close(jitter(images, throw(key(1, torch.arange(4))), 0.0), images)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 2.0])
def test_mixing_shares_follow_a_beta_distribution(alpha):
    table = beta_quantiles(alpha)
    drawn = look_up(table, throw(key(7, torch.arange(4000)))[:, 5])
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 0.03
    assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.015


def test_a_negative_alpha_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        beta_quantiles(-1.0)


def test_draws_of_batches_equal_those_of_single_pictures():
    keys = key(9, 1, torch.arange(6))
    dice = throw(keys)
    assert dice.shape == (6, PURPOSES)
    assert all(dice[i, p] == uniform_number(int(keys[i]), p) for i in range(6) for p in (0, 5, 63))


def test_grey_pictures_are_augmented_too():
    pictures, labels, keys = batch(channels=1)
    images, _ = augment(mean=[0.5], std=[0.25])(pictures, labels, keys)
    assert images.shape == (32, 1, 16, 16)
    assert images.isfinite().all()


def test_resized_crops_fill_the_image():
    pictures, labels, keys = batch(side=24)
    images, _ = augment(AugmentConfig(crop="resized", scale=[0.25, 1.0]))(pictures, labels, keys)
    assert images.shape == (32, 3, 16, 16)
    plain = torch.full((8, 3, 24, 24), 200, dtype=torch.uint8)
    same, _ = augment(AugmentConfig(crop="resized", scale=[0.25, 0.9]))(plain, labels[:8], keys[:8])
    torch.testing.assert_close(
        same[..., 2:-2, 2:-2], torch.full((8, 3, 12, 12), (200 / 255 - 0.5) / 0.25), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_cpu_gives_what_doing_everything_to_every_picture_gives(monkeypatch, channels):
    config = AugmentConfig(crop="pad", rand_ops=2, mixup=0.2, cutmix=1.0, mix_prob=0.7)
    draws = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (96, channels, 12, 12), dtype=torch.uint8, generator=draws)
    labels, keys = torch.arange(96) % 3, torch.arange(96) * 7919
    augmenting = Augment(config, mean=[0.5] * channels, std=[0.2] * channels, num_classes=3, img_size=12)
    spared = augmenting(pictures, labels, keys)

    def colour_all(images, dice, purpose, config):
        drawn = (draw[:, None, None, None] for draw in module.rand_draws(dice, purpose, config))
        return module.recolour(images, *drawn, of=range(module.OPERATIONS)).clamp(0, 1)

    monkeypatch.setattr(module, "change", lambda images, changed, function, *others: function(images, *others))
    monkeypatch.setattr(module, "rand_colour", colour_all)
    whole = augmenting(pictures, labels, keys)
    assert all(torch.equal(a, b) for a, b in zip(spared, whole, strict=True))


def test_pictures_that_nothing_moves_keep_their_exact_values():
    config = AugmentConfig(crop="none", flip=0, rand_ops=1)
    pictures = torch.randint(0, 256, (200, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keys = torch.arange(200) * 7919
    images, _ = Augment(config, mean=[0.0] * 3, std=[1.0] * 3, num_classes=3, img_size=12)(pictures, keys % 3, keys)
    operation, _, _ = module.rand_draws(module.throw(keys), module.RAND, config)
    assert torch.equal(images[operation == 0], pictures[operation == 0].float() / 255)
    assert (operation == 0).sum() > 5
