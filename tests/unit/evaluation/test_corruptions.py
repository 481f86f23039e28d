from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import ndimage

from saccade.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from saccade.evaluation.robust import apply, corruptions


def textured(seed: int, side: int, channels: int = 3) -> np.ndarray:
    """Return an image with structure of every size, as photographs have, so that blurs have something to blur."""
    random = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for sigma in (0.5, 1, 2, 4, 8, 16):
        layer = ndimage.gaussian_filter(random.standard_normal(total.shape), (sigma, sigma, 0), mode="wrap")
        total += layer / layer.std() * np.sqrt(sigma)
    return np.clip(120 + 20 * total, 0, 255).astype(np.uint8)[..., :channels]


@pytest.mark.parametrize("side", [28, 160])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_change_grows_with_severity(name, side):
    images = [textured(seed, side) for seed in range(6)]
    changes = [
        np.mean([(corrupt(p, name, s, rng_key=i) - p.astype(float)) ** 2 for i, p in enumerate(images)])
        for s in SEVERITIES
    ]
    assert changes[0] > 0
    assert np.diff(changes).min() > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_a_function_of_image_and_word_alone(name):
    image = textured(0, 32)
    kept = image.copy()
    first = corrupt(image, name, 3, rng_key=7)
    corrupt(textured(1, 32), name, 3, rng_key=8)
    assert first.dtype == np.uint8
    assert first.shape == image.shape
    assert np.array_equal(first, corrupt(image, name, 3, rng_key=7))
    assert np.array_equal(image, kept)


def test_draws_differ_between_images_and_severities():
    grey = np.full((32, 32, 3), 128, np.uint8)
    first = corrupt(grey, "gaussian_noise", 2, rng_key=1).astype(int) - 128
    other = corrupt(grey, "gaussian_noise", 2, rng_key=2).astype(int) - 128
    stronger = corrupt(grey, "gaussian_noise", 3, rng_key=1).astype(int) - 128
    for pair in ((first, other), (first, stronger)):
        assert abs(np.corrcoef(pair[0].ravel(), pair[1].ravel())[0, 1]) < 0.1


def test_noise_has_the_strength_it_states():
    grey = np.full((224, 224, 3), 128, np.uint8)
    noise = (corrupt(grey, "gaussian_noise", 2, rng_key=1).astype(float) - 128) / 255
    assert noise.std() == pytest.approx(0.12, rel=0.05)
    shot = corrupt(grey, "shot_noise", 1, rng_key=1) / 255
    assert shot.std() == pytest.approx(np.sqrt(128 / 255 / 60), rel=0.05)


@pytest.mark.parametrize("side", [64, 65, 100])
def test_blur_keeps_an_even_image_and_the_mean_of_any(side):
    even = np.full((side, side, 3), 90, np.uint8)
    for name in ("gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur"):
        assert np.array_equal(corrupt(even, name, 5, rng_key=3), even)
    point = np.zeros((side, side, 1), np.uint8)
    point[side // 2, side // 2] = 255
    spread = corrupt(point, "defocus_blur", 3, rng_key=0)[..., 0].astype(float)
    rows, columns = np.mgrid[:side, :side]
    assert (rows * spread).sum() / spread.sum() == pytest.approx(side // 2, abs=0.05)
    assert (columns * spread).sum() / spread.sum() == pytest.approx(side // 2, abs=0.05)


def test_batches_of_any_size_hold_the_same_bytes():
    images = torch.from_numpy(np.stack([textured(seed, 28, 1) for seed in range(6)])).permute(0, 3, 1, 2)
    words = list(range(6))
    for condition in corruptions(1)[::7]:
        whole = apply(condition, images, words)
        parts = [apply(condition, images[i : i + 1], words[i : i + 1]) for i in reversed(range(6))]
        assert torch.equal(whole, torch.cat(parts[::-1]))


def test_threads_change_nothing():
    images = torch.from_numpy(np.stack([textured(seed, 96) for seed in range(4)])).permute(0, 3, 1, 2)
    with ThreadPoolExecutor(3) as pool:
        for condition in corruptions(3)[2::5]:
            assert torch.equal(apply(condition, images, range(4), pool=pool), apply(condition, images, range(4)))


def test_grey_images_are_not_saturated():
    assert not any("saturate" in condition.key for condition in corruptions(1))
    assert len(corruptions(3)) == 5 * len(CORRUPTIONS)


def test_unknown_name_and_severity_are_refused():
    with pytest.raises(ValueError, match=r"no corruption 'rain'; available: gaussian_noise"):
        corrupt(textured(0, 32), "rain", 1, rng_key=0)
    with pytest.raises(ValueError, match="severity 6"):
        corrupt(textured(0, 32), "fog", 6, rng_key=0)
