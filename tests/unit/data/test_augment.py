import pytest
import torch

from saccade.data import augment as module
from saccade.data import geometry
from saccade.data.augment import beta_quantiles, boxes, erase, jitter, look_up, rand_colour
from saccade.data.draws import key, uniform
from saccade.data.geometry import (
    LEFT,
    PURPOSES,
    TOP,
    Geometry,
    Shift,
    draw_uniforms,
    identity,
    mirror,
    rand_geometry,
    resample,
)
from saccade.settings import AugmentConfig
from support.augmenting import ImagesAndLabels

ALL = AugmentConfig(rand_ops=2, erase=0.5, mixup=0.8, cutmix=1.0, jitter=0.3)


def batch(count=32, side=16, channels=3):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)
    return pixels, torch.arange(count) % 5, key(0, 3, torch.arange(count))


def augment(config=ALL, **options):
    defaults = {"mean": [0.5] * 3, "std": [0.25] * 3, "num_classes": 5, "img_size": 16}
    return ImagesAndLabels(config, **(defaults | options))


def test_an_image_looks_the_same_in_whatever_batch_it_comes():
    pixels, labels, keys = batch()
    images, targets = augment()(pixels, labels, keys)
    some, shares = augment()(pixels[8:20], labels[8:20], keys[8:20])
    assert torch.equal(images[8:20], some)
    assert torch.equal(targets[8:20], shares)


def test_another_epoch_looks_otherwise():
    pixels, labels, _ = batch()
    index = torch.arange(len(labels))
    first, _ = augment()(pixels, labels, key(0, 1, index))
    second, _ = augment()(pixels, labels, key(0, 2, index))
    assert (first != second).flatten(1).any(1).float().mean() > 0.9


def test_nothing_asked_for_leaves_normalised_images_and_plain_labels():
    pixels, labels, keys = batch()
    images, targets = augment(AugmentConfig(crop="none", flip=0.0))(pixels, labels, keys)
    torch.testing.assert_close(images, (pixels.float() / 255 - 0.5) / 0.25)
    assert torch.equal(targets, labels)


def test_shares_of_classes_sum_to_one_and_say_what_is_in_the_image():
    config = AugmentConfig(crop="none", flip=0.0, cutmix=1.0)
    count = 64
    pixels = (torch.arange(count) % 5 * 50).to(torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16)
    labels = torch.arange(count) % 5
    images, targets = augment(config)(pixels, labels, key(0, torch.arange(count)))
    torch.testing.assert_close(targets.sum(1), torch.ones(count))
    painted = ((images * 0.25 + 0.5) * 255).round().div(50).long()[:, 0]  # the class each pixel came from
    for image, share in zip(painted, targets, strict=True):
        counted = torch.bincount(image.flatten(), minlength=5) / image.numel()
        torch.testing.assert_close(counted, share, atol=1e-6, rtol=0)


def test_mixup_blends_neighbours_by_the_share_of_their_classes():
    pixels = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    pixels[1] = 255
    config = AugmentConfig(crop="none", flip=0.0, mixup=1.0)
    images, targets = augment(config)(pixels, torch.tensor([0, 1]), key(5, torch.arange(2)))
    bright = images.mean((1, 2, 3)) * 0.25 + 0.5
    torch.testing.assert_close(bright, targets[:, 1], atol=1e-5, rtol=0)


def test_the_last_image_of_an_odd_batch_is_mixed_with_itself():
    pixels, labels, keys = batch(3)
    _, targets = augment(AugmentConfig(mixup=1.0))(pixels, labels, keys)
    torch.testing.assert_close(targets[2], torch.nn.functional.one_hot(labels[2], 5).float())


def test_smoothing_spreads_its_share():
    pixels, labels, keys = batch()
    _, targets = augment(AugmentConfig(), smoothing=0.1)(pixels, labels, keys)
    torch.testing.assert_close(targets.max(1).values, torch.full((32,), 0.9 + 0.02))


def test_weak_epochs_leave_out_what_is_strong():
    pixels, labels, keys = batch()
    config = AugmentConfig(crop="none", flip=0.0, rand_ops=2, erase=1.0, mixup=1.0)
    images, targets = augment(config)(pixels, labels, keys, strong=False)
    torch.testing.assert_close(images, (pixels.float() / 255 - 0.5) / 0.25)
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 5).float())


def test_shift_moves_by_the_drawn_number_of_pixels():
    pixels, _, keys = batch(8)
    draws = draw_uniforms(keys)
    moved = Shift.draw(draws, pad=2, flip=0.0).pixels(pixels)
    for index in range(8):
        down, right = (int(draws[index, purpose] * 5) - 2 for purpose in (TOP, LEFT))
        rows = mirror(torch.arange(16) + down, 16)
        columns = mirror(torch.arange(16) + right, 16)
        assert torch.equal(moved[index], pixels[index][:, rows][:, :, columns])


def test_flip_mirrors_its_share_of_images():
    pixels, _, _ = batch(400, side=4)
    flipped = Shift.draw(draw_uniforms(key(1, torch.arange(400))), pad=0, flip=0.25).pixels(pixels)
    turned = (flipped == pixels.flip(3)).flatten(1).all(1)
    assert torch.equal(flipped[~turned], pixels[~turned])
    assert 0.17 < turned.float().mean() < 0.33


def test_mirror_reflects_without_repeating_the_edge():
    assert mirror(torch.arange(-3, 8), 5).tolist() == [3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1]
    assert mirror(torch.arange(-2, 3), 1).tolist() == [0] * 5


def test_resampling_without_a_move_changes_nothing():
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(resample(images, identity(images), (9, 9)), images, atol=1e-6, rtol=0)


def test_rand_augment_moves_some_and_recolours_others():
    config = AugmentConfig(rand_ops=1)
    images = torch.rand(600, 3, 8, 8)
    draws = draw_uniforms(key(2, torch.arange(600)))
    moved = (rand_geometry(draws, 32, config) - torch.eye(3)).abs().amax((1, 2)) > 1e-3
    coloured = (rand_colour(images, draws, 32, config) - images).abs().amax((1, 2, 3)) > 1e-3
    assert not (moved & coloured).any()
    assert 0.25 < moved.float().mean() < 0.47  # 5 of 14 operations
    assert coloured.float().mean() > 0.3
    assert rand_colour(images, draws, 32, config).min() >= 0
    assert rand_colour(images, draws, 32, config).max() <= 1


def test_stronger_magnitude_moves_further():
    draws = draw_uniforms(key(2, torch.arange(600)))
    sizes = [
        (rand_geometry(draws, 32, AugmentConfig(rand_magnitude=m, rand_spread=0.0)) - torch.eye(3)).abs().mean()
        for m in (1.0, 5.0, 10.0)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


def test_rotations_and_shears_are_in_pixels_of_images_that_are_not_square():
    draws, pixels = draw_uniforms(key(2, torch.arange(600))), torch.diag(torch.tensor([96.0, 32.0, 1.0]))
    square, wide = (rand_geometry(draws, 32, AugmentConfig(rand_ops=1), aspect=a)[:, :2, :2] for a in (1.0, 1 / 3))
    whole = pixels[:2, :2]
    torch.testing.assert_close(whole @ wide @ whole.inverse(), square)
    assert (square - wide).abs().max() > 0.5


def test_erasing_paints_one_box_of_allowed_area():
    images = torch.full((400, 3, 32, 32), 9.0)
    erased = erase(images, draw_uniforms(key(3, torch.arange(400))), 0.5)
    share = (erased != 9).any(1).float().mean((1, 2))
    assert 0.4 < (share > 0).float().mean() < 0.6
    assert share.max() < 0.4
    assert share[share > 0].min() > 0.01


def test_boxes_have_the_area_asked_for_when_kept_whole():
    side = torch.full((50,), 0.5)
    inside = boxes(draw_uniforms(key(4, torch.arange(50))), 12, side, side, (20, 20), whole=True)
    assert (inside.sum((1, 2)) == 100).all()


def test_jitter_by_nothing_changes_nothing():
    images = torch.rand(4, 3, 5, 5)
    torch.testing.assert_close(jitter(images, draw_uniforms(key(1, torch.arange(4))), 0.0), images)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 2.0])
def test_mixing_shares_follow_a_beta_distribution(alpha):
    table = beta_quantiles(alpha)
    drawn = look_up(table, draw_uniforms(key(7, torch.arange(4000)))[:, 5])
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 0.03
    assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.015


def test_a_negative_alpha_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        beta_quantiles(-1.0)


def test_draws_of_batches_equal_those_of_single_images():
    keys = key(9, 1, torch.arange(6))
    draws = draw_uniforms(keys)
    assert draws.shape == (6, PURPOSES)
    assert all(draws[i, p] == uniform(int(keys[i]), p) for i in range(6) for p in (0, 5, 63))


def test_grey_images_are_augmented_too():
    pixels, labels, keys = batch(channels=1)
    images, _ = augment(mean=[0.5], std=[0.25])(pixels, labels, keys)
    assert images.shape == (32, 1, 16, 16)
    assert images.isfinite().all()


def test_resized_crops_fill_the_image():
    pixels, labels, keys = batch(side=24)
    images, _ = augment(AugmentConfig(crop="resized", scale=[0.25, 1.0]))(pixels, labels, keys)
    assert images.shape == (32, 3, 16, 16)
    plain = torch.full((8, 3, 24, 24), 200, dtype=torch.uint8)
    same, _ = augment(AugmentConfig(crop="resized", scale=[0.25, 0.9]))(plain, labels[:8], keys[:8])
    torch.testing.assert_close(
        same[..., 2:-2, 2:-2], torch.full((8, 3, 12, 12), (200 / 255 - 0.5) / 0.25), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_cpu_gives_what_doing_everything_to_every_image_gives(monkeypatch, channels):
    config = AugmentConfig(crop="pad", rand_ops=2, mixup=0.2, cutmix=1.0, mix_prob=0.7)
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (96, channels, 12, 12), dtype=torch.uint8, generator=source)
    labels, keys = torch.arange(96) % 3, torch.arange(96) * 7919
    augmenting = ImagesAndLabels(config, mean=[0.5] * channels, std=[0.2] * channels, num_classes=3, img_size=12)
    spared = augmenting(pixels, labels, keys)

    def colour_all(images, draws, purpose, config):
        drawn = (draw[:, None, None, None] for draw in module.rand_draws(draws, purpose, config))
        return module.recolour(images, *drawn, of=range(module.OPERATIONS)).clamp(0, 1)

    for one in (module, geometry):
        monkeypatch.setattr(one, "change", lambda images, changed, function, *others: function(images, *others))
    monkeypatch.setattr(module, "rand_colour", colour_all)
    whole = augmenting(pixels, labels, keys)
    assert all(torch.equal(a, b) for a, b in zip(spared, whole, strict=True))


def test_images_that_nothing_moves_keep_their_exact_values():
    config = AugmentConfig(crop="none", flip=0, rand_ops=1)
    pixels = torch.randint(0, 256, (200, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keys = torch.arange(200) * 7919
    images, _ = ImagesAndLabels(config, mean=[0.0] * 3, std=[1.0] * 3, num_classes=3, img_size=12)(
        pixels, keys % 3, keys
    )
    operation, _, _ = module.rand_draws(module.draw_uniforms(keys), module.RAND, config)
    assert torch.equal(images[operation == 0], pixels[operation == 0].float() / 255)
    assert (operation == 0).sum() > 5


MOVING = [
    AugmentConfig(crop="pad", pad=0.25),
    AugmentConfig(crop="none", flip=1.0),
    AugmentConfig(crop="resized", scale=[0.3, 0.9]),
    AugmentConfig(crop="pad", rand_ops=2, rand_magnitude=7),
]


@pytest.mark.parametrize("config", MOVING)
@pytest.mark.parametrize("side", [32, 24])
def test_one_draw_moves_image_mask_and_boxes_alike(config, side):
    draws = draw_uniforms(key(11, torch.arange(24)))
    box = torch.tensor([10.0, 14.0, 22.0, 26.0])  # left, top, right, bottom
    mask = torch.zeros(24, 32, 32, dtype=torch.int64)
    mask[:, 14:26, 10:22] = 3
    pixels = (mask > 0)[:, None].expand(-1, 3, -1, -1).to(torch.uint8) * 255
    moved = Geometry.draw(draws, config, width=32, size=(side, side), operations=config.rand_ops)
    shown, drawn = moved.images(pixels)[:, 0], moved.mask(mask)
    boxes = moved.boxes(box.expand(24, 1, 4), (32, 32))[:, 0]
    assert set(drawn.unique().tolist()) <= {-1, 0, 3}
    inside = shown > 0.75
    agree = (inside == (drawn == 3)) | ((shown > 0.05) & (shown <= 0.95))
    assert agree.float().mean() > 0.97
    checked = 0
    for part, (left, top, right, bottom) in zip(inside, boxes.tolist(), strict=True):
        if part.sum() < 20:
            continue
        rows, columns = part.any(1).nonzero()[:, 0], part.any(0).nonzero()[:, 0]
        # Nothing of the object is outside of its box; where edges are not mirrored, the box is tight.
        if config.crop != "pad":
            assert columns[0] >= left - 1.5
            assert columns[-1] + 1 <= right + 1.5
            assert rows[0] >= top - 1.5
            assert rows[-1] + 1 <= bottom + 1.5
            checked += 1
    assert checked > 10 or config.crop == "pad"


def test_box_of_a_shifted_and_flipped_image_is_where_the_object_is():
    draws = draw_uniforms(key(5, torch.arange(64)))
    shift = Shift.draw(draws, pad=3, flip=0.5)
    image = torch.zeros(64, 1, 20, 30)
    image[:, :, 8:12, 12:17] = 1
    moved = shift.pixels(image)[:, 0]
    boxes = shift.boxes(torch.tensor([12.0, 8.0, 17.0, 12.0]).expand(64, 1, 4), 30)[:, 0]
    assert len({int(down) for down in shift.down}) > 3
    assert 0 < shift.flipped.sum() < 64
    for part, box in zip(moved, boxes.tolist(), strict=True):
        rows, columns = part.any(1).nonzero()[:, 0], part.any(0).nonzero()[:, 0]
        assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def test_batch_with_mask_and_boxes_comes_out_moved_and_targets_that_cannot_be_mixed_are_refused():
    pixels, _, keys = batch(8)
    more = {"mask": torch.zeros(8, 16, 16, dtype=torch.int64), "boxes": torch.zeros(8, 2, 4)}
    spec = {"mean": [0.5] * 3, "std": [0.25] * 3, "img_size": 12}
    found = module.Augment(AugmentConfig(), **spec)({"image": pixels, "key": keys, **more})
    assert found["image"].shape == (8, 3, 12, 12)
    assert found["mask"].shape == (8, 12, 12)
    assert found["boxes"].shape == (8, 2, 4)
    with pytest.raises(ValueError, match=r"augment\.mixup .* cannot be mixed; set both to 0"):
        module.Augment(AugmentConfig(mixup=0.5), **spec)({"image": pixels, "key": keys, "target": keys})
