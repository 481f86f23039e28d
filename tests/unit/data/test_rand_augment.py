"""RandAugment and erasing are timm's: each operation to one level, and draws and results in distribution."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from scipy.stats import binomtest, chisquare, ks_2samp, kstest

from saccade.data.augment import Augment
from saccade.data.draws import key
from saccade.data.geometry import Geometry, draw_uniforms
from saccade.data.rand_augment import NONE, NUMBER, OPERATIONS, Step, draw_boxes, erase_pixels
from saccade.settings import AugmentConfig, ConfigError
from saccade.tasks.segmentation.augment import AfterCrops
from support import timm_augment as theirs

TIMM = {
    "rand_ops": 2,
    "rand_magnitude": 9.0,
    "rand_spread": 0.5,
    "rand_kind": "timm",
    "rand_prob": 0.5,
    "rand_interpolation": "bicubic",
}
POLICY = AugmentConfig(crop="none", flip=0.0, **TIMM)
FILL = torch.tensor(theirs.FILL).float().view(3, 1, 1)
KEYS = key(3, 1, torch.arange(20_000))
MOVING = OPERATIONS[NUMBER["Rotate"] :]
UNLIKELY = 1e-4  # a share that chance alone would fall below


def step(name, level, sign=1.0, cubic=True, count=1):
    return Step(
        torch.full((count,), NUMBER[name]),
        torch.full((count,), level),
        torch.full((count,), sign),
        torch.full((count,), cubic),
    )


def test_operations_are_those_of_timms_policy():
    with theirs.seeded(0):
        made = theirs.auto_augment.rand_augment_transform(theirs.POLICY, {"img_mean": theirs.FILL})
    assert sorted(theirs.NAMES.values()) == sorted(operation.name for operation in made.ops)
    assert {(o.prob, o.magnitude, o.magnitude_std) for o in made.ops} == {(0.5, 9, 0.5)}
    assert made.num_layers == 2


@pytest.mark.parametrize("level", [0.0, 0.3, 0.74, 0.9, 1.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_timms_to_one_level(name, level):
    image = theirs.smooth_images(1, 40, seed=NUMBER[name])
    for sign in (-1.0, 1.0):
        for cubic in (False, True) if name in MOVING else (True,):
            kind = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
            with theirs.seeded(0), theirs.sign(sign):
                want = theirs.one(name, image[0], magnitude=10 * level, interpolation=kind)
            found = step(name, level, sign, cubic)(image, FILL)[0]
            assert (found - want).abs().max() <= 1
            assert (found != want).float().mean() < 0.1


@pytest.mark.parametrize("value", [0, 7, 255])
@pytest.mark.parametrize("name", ["AutoContrast", "Equalize", "Contrast", "Sharpness", "Color"])
def test_an_image_of_one_colour_is_treated_as_timm_treats_it(name, value):
    image = torch.full((3, 16, 16), float(value))
    with theirs.seeded(0), theirs.sign(1):
        want = theirs.one(name, image, magnitude=9)
    assert (step(name, 0.9)(image[None], FILL)[0] - want).abs().max() <= 1


def test_each_operation_is_drawn_as_often_and_half_of_them_are_done():
    drawn = Step.draw(KEYS, 0, POLICY)
    done = drawn.operation[drawn.operation != NONE]
    assert binomtest(len(done), len(KEYS), 0.5).pvalue > UNLIKELY
    assert chisquare(torch.bincount(done, minlength=len(OPERATIONS)).numpy()).pvalue > UNLIKELY
    assert binomtest(int((drawn.sign > 0).sum()), len(KEYS), 0.5).pvalue > UNLIKELY


def test_magnitude_is_normal_and_cut_at_ten():
    level = Step.draw(KEYS, 1, POLICY).level
    whole = level[level < 1]
    assert kstest(((whole * 10 - 9) / 0.5).numpy(), "truncnorm", args=(-18, 2)).pvalue > UNLIKELY
    assert binomtest(int((level == 1).sum()), len(level), 0.0227501).pvalue > UNLIKELY


def test_draws_of_two_operations_are_independent():
    first, second = (Step.draw(KEYS, number, POLICY) for number in (0, 1))
    assert abs(torch.corrcoef(torch.stack([first.level, second.level]))[0, 1]) < 0.03
    assert abs((first.operation == second.operation).float().mean() - (0.25 + 0.25 / 15)) < 0.015


@pytest.mark.parametrize(("kind", "share"), [("bilinear", 0.0), ("bicubic", 1.0), ("random", 0.5)])
def test_interpolation_is_the_one_asked_for(kind, share):
    drawn = Step.draw(KEYS, 0, AugmentConfig(**(TIMM | {"rand_interpolation": kind})))
    assert abs(drawn.cubic.float().mean() - share) < 0.02


def test_whole_policy_gives_images_of_timms_distribution():
    images = theirs.smooth_images(12, 24).repeat(60, 1, 1, 1)
    with theirs.seeded(0):
        want = theirs.statistics(images, theirs.policy(images))
    ours = Augment(POLICY, mean=theirs.MEAN, std=[1.0] * 3, img_size=24)
    made = ours({"image": images.to(torch.uint8), "key": KEYS[: len(images)]})["image"]
    made = (made + torch.tensor(theirs.MEAN).view(3, 1, 1)) * 255
    torch.testing.assert_close(made, made.round(), atol=1e-3, rtol=0)
    found = theirs.statistics(images, made.round())
    assert {name: p for name in want if (p := ks_2samp(want[name], found[name]).pvalue) < UNLIKELY} == {}
    simple = Augment(AugmentConfig(crop="none", flip=0, rand_ops=2), mean=[0.0] * 3, std=[1.0] * 3, img_size=24)
    other = theirs.statistics(images, simple({"image": images.to(torch.uint8), "key": KEYS[:720]})["image"] * 255)
    assert ks_2samp(want["change"], other["change"]).pvalue < UNLIKELY  # what the comparison would find


def test_cpu_gives_what_doing_everything_to_every_image_gives(monkeypatch):
    from saccade.data import rand_augment

    images = theirs.smooth_images(90, 16)
    drawn = Step.draw(KEYS[:90], 0, AugmentConfig(**(TIMM | {"rand_prob": 1.0})))
    spared = drawn(images, FILL)
    monkeypatch.setattr(rand_augment, "change", lambda images, changed, function, *others: function(images, *others))
    assert torch.equal(drawn(images, FILL), spared)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_of_other_channels_are_augmented_too(channels):
    config = AugmentConfig(crop="resized", erase=0.5, erase_kind="pixel", **(TIMM | {"rand_prob": 1.0}))
    pixels = theirs.smooth_images(40, 16).to(torch.uint8)[:, :1].repeat(1, channels, 1, 1)
    ours = Augment(config, mean=[0.5] * channels, std=[0.2] * channels, img_size=16)
    images = ours({"image": pixels, "key": KEYS[:40]})["image"]
    assert images.shape == (40, channels, 16, 16)
    assert images.isfinite().all()


def test_an_image_looks_the_same_in_whatever_batch_it_comes():
    config = AugmentConfig(crop="resized", erase=0.5, erase_kind="pixel", **TIMM)
    ours = Augment(config, mean=theirs.MEAN, std=[0.2] * 3, img_size=16)
    pixels = theirs.smooth_images(40, 20).to(torch.uint8)
    whole = ours({"image": pixels, "key": KEYS[:40]})["image"]
    some = ours({"image": pixels[7:19], "key": KEYS[7:19]})["image"]
    assert torch.equal(whole[7:19], some)


@pytest.mark.parametrize("name", MOVING)
def test_masks_and_boxes_move_with_the_image(name):
    drawn = step(name, 0.5, count=1)
    geometry = Geometry.draw(
        draw_uniforms(KEYS[:1]),
        AugmentConfig(crop="none", flip=0),
        width=32,
        size=(32, 32),
        operations=0,
        later=[drawn.moves(), step("TranslateX", 0.2).moves()],
    )
    mask = torch.zeros(1, 32, 32, dtype=torch.int64)
    mask[:, 12:20, 10:22] = 1
    image = mask[:, None].expand(-1, 3, -1, -1).float() * 255
    moved = step("TranslateX", 0.2)(drawn(image, FILL * 0), FILL * 0)[0, 0] > 127
    shown = geometry.mask(mask)[0] == 1
    assert (moved == shown).float().mean() > 0.97
    left, top, right, bottom = geometry.boxes(torch.tensor([[[10.0, 12.0, 22.0, 20.0]]]), (32, 32))[0, 0].tolist()
    rows, columns = shown.any(1).nonzero()[:, 0], shown.any(0).nonzero()[:, 0]
    assert left - 1.5 <= columns[0]
    assert columns[-1] + 1 <= right + 1.5
    assert top - 1.5 <= rows[0]
    assert rows[-1] + 1 <= bottom + 1.5


@pytest.mark.parametrize("name", MOVING)
def test_masks_of_images_that_are_not_square_move_with_them(name):
    config = replace(POLICY, rand_ops=1, rand_prob=1.0, rand_spread=0.0)
    keys = KEYS[:400][Step.draw(KEYS[:400], 0, config).operation == NUMBER[name]][:6]
    mask = torch.zeros(len(keys), 32, 96, dtype=torch.int16)
    mask[:, 8:24, 30:66] = 1
    image = mask[:, None].expand(-1, 3, -1, -1).to(torch.uint8) * 255
    augment = AfterCrops(config, img_size=32, mean=[0.0] * 3, std=[1.0] * 3)
    found = augment({"image": image, "mask": mask, "key": keys})
    moved, shown = found["image"][:, 0] > 0.5, found["mask"] == 1
    assert len(keys) == 6
    assert (moved != (mask == 1)).any()
    assert ((moved & shown).sum() / (moved | shown).sum()) > 0.94


@pytest.mark.parametrize("size", [(24, 24), (20, 36)])
def test_erased_boxes_have_timms_areas_shapes_and_places(size):
    images = torch.full((1500, 1, *size), 9.0)
    with theirs.seeded(1):
        want = (theirs.erased(images, 0.5) != 9)[:, 0]
    found = draw_boxes(KEYS[:1500], 0.5, size)
    assert abs(want.any((1, 2)).float().mean() - found.any((1, 2)).float().mean()) < 0.07
    for number in (
        lambda m: m.float().sum((1, 2)),
        lambda m: m.any(2).sum(1),
        lambda m: m.any(1).sum(1),
        lambda m: m.any(2).int().argmax(1),
        lambda m: m.any(1).int().argmax(1),
    ):
        both = [number(mask[mask.any((1, 2))]) for mask in (want, found)]
        assert ks_2samp(*both).pvalue > UNLIKELY


def test_erased_pixels_are_standard_normal_and_independent():
    images = torch.full((400, 3, 24, 24), 99.0)
    erased = erase_pixels(images, KEYS[:400], 1.0)
    noise = erased[erased != 99]
    assert kstest(noise[:20_000].numpy(), "norm").pvalue > UNLIKELY
    assert abs(noise.var() - 1) < 0.02
    both = (erased[..., 1:] != 99) & (erased[..., :-1] != 99)
    beside = torch.stack([erased[..., 1:][both], erased[..., :-1][both]])
    assert abs(torch.corrcoef(beside)[0, 1]) < 0.01
    every = (erased != 99).all(1)
    channels = torch.stack([erased[:, 0][every], erased[:, 1][every]])
    assert abs(torch.corrcoef(channels)[0, 1]) < 0.01


def test_what_a_kind_does_not_know_is_refused():
    with pytest.raises(ConfigError, match=r"rand_interpolation = bicubic .* set augment.rand_kind=timm"):
        Augment(AugmentConfig(rand_interpolation="bicubic"), mean=[0.5], std=[0.5], img_size=8)


def test_simple_operations_are_done_as_often_as_asked():
    images = theirs.smooth_images(600, 12).to(torch.uint8)
    changed = {}
    for share in (0.0, 0.5, 1.0):
        config = AugmentConfig(crop="none", flip=0, rand_ops=1, rand_prob=share)
        made = Augment(config, mean=[0.0] * 3, std=[1.0] * 3, img_size=12)({"image": images, "key": KEYS[:600]})
        changed[share] = (made["image"] * 255 - images).abs().flatten(1).amax(1).gt(0.01).float().mean()
    assert changed[0.0] == 0
    assert abs(changed[0.5] / changed[1.0] - 0.5) < 0.08
