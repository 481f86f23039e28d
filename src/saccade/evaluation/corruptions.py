"""Common corruptions at five severities, random for each image, rounded to bytes.

The corruptions are those of Hendrycks and Dietterich (2019), reimplemented: results cannot be compared with their
files. Strengths are given for images of 32 and 224 pixels and interpolated between them.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy import fft, ndimage

SEVERITIES = (1, 2, 3, 4, 5)
SMALL, LARGE = 32, 224
Rng = np.random.Generator
Change = Callable[[np.ndarray, float, Rng], np.ndarray]  # H, W, C from 0 to 1, strength, draws -> H, W, C


@dataclass(frozen=True)
class Corruption:
    """One kind of corruption."""

    change: Change  # the function, which names the corruption
    small: tuple[float, ...]  # strengths of severities 1 to 5 at 32 pixels
    large: tuple[float, ...]  # likewise at 224 pixels
    length: bool = False  # whether the strength is a length, which scales with sides above 224
    colour: bool = False  # whether it leaves grey images unchanged

    def strength(self, severity: int, side: int) -> float:
        """Return the strength of a severity for images of the given side."""
        if severity not in SEVERITIES:
            raise ValueError(f"severity {severity}: it must be from 1 to 5")
        share = min(math.log(side / SMALL) / math.log(LARGE / SMALL), 1.0)
        low, high = self.small[severity - 1], self.large[severity - 1]
        found = low ** (1 - share) * high**share
        return found * side / LARGE if self.length and side > LARGE else found


def corrupt(image: np.ndarray, name: str, severity: int, *, rng_key: int) -> np.ndarray:
    """Return a corrupted image.

    Args:
        image: uint8 H, W, C.
        severity: 1 to 5.
        rng_key: random key of seed and image; name and severity are added.
    """
    if name not in CORRUPTIONS:
        raise ValueError(f"no corruption {name!r}; available: {', '.join(CORRUPTIONS)}")
    found = CORRUPTIONS[name]
    random = np.random.default_rng([rng_key, list(CORRUPTIONS).index(name), severity])
    values = image.astype(np.float32) / 255
    changed = found.change(values, found.strength(severity, min(image.shape[:2])), random)
    return np.clip(np.rint(changed * 255), 0, 255).astype(np.uint8)


def gaussian_noise(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Add Gaussian noise."""
    return x + strength * random.standard_normal(x.shape, dtype=np.float32)


def shot_noise(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Poisson noise: white is `strength` photons."""
    return random.poisson(x * strength).astype(np.float32) / strength


def impulse_noise(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Salt-and-pepper noise on a share of the values."""
    draws = random.random(x.shape, dtype=np.float32)
    return np.where(draws < strength / 2, 0, np.where(draws < strength, 1, x))


def speckle_noise(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Multiplicative Gaussian noise."""
    return x + x * strength * random.standard_normal(x.shape, dtype=np.float32)


def gaussian_blur(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Gaussian blur with this standard deviation."""
    return ndimage.gaussian_filter(x, (strength, strength, 0), mode="reflect")


def defocus_blur(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Disc blur of this radius, as by an unfocused lens."""
    reach = math.ceil(strength + 0.5)
    along = np.arange(-reach, reach + 1)
    away = np.hypot(along[:, None], along[None])
    return _convolve(x, np.clip(strength + 0.5 - away, 0, 1))


def motion_blur(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Blur along a line of this length and a random direction."""
    angle = random.random() * math.pi
    reach = math.ceil(strength / 2 + 0.5)
    down, right = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    across = np.abs(right * math.sin(angle) - down * math.cos(angle))
    along = np.abs(right * math.cos(angle) + down * math.sin(angle))
    return _convolve(x, np.clip(1 - across, 0, 1) * np.clip(strength / 2 + 0.5 - along, 0, 1))


def zoom_blur(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Average of the image zoomed by factors up to 1 + strength."""
    steps = [1 + strength * step / 8 for step in range(1, 9)]
    return (x + sum(_enlarged(x, factor) for factor in steps)) / (1 + len(steps))


def fog(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Fog of random depth: x * t + 0.85 * (1 - t) with t = exp(-strength * depth)."""
    depth = _clouds(x.shape[:2], random)[..., None]
    passed = np.exp(-strength * (0.4 + depth))
    return x * passed + 0.85 * (1 - passed)


def brightness(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Add a constant to all values."""
    return x + strength


def contrast(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Scale the distance of all values from the image's mean by `strength`."""
    mean = x.mean((0, 1), keepdims=True)
    return mean + (x - mean) * strength


def saturate(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Scale the distance of colours from grey."""
    grey = x @ np.array([0.299, 0.587, 0.114], dtype=np.float32) if x.shape[2] == 3 else x[..., 0]
    return grey[..., None] + (x - grey[..., None]) * strength


def pixelate(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """Downsample by `strength` and enlarge by nearest neighbour."""
    image = _to_image(x)
    small = [max(round(side * strength), 1) for side in image.size]
    return _from_image(image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.NEAREST))


def jpeg(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:  # noqa: ARG001
    """JPEG compression with this quality."""
    file = io.BytesIO()
    _to_image(x).save(file, "JPEG", quality=round(strength))
    return _from_image(Image.open(file))


def elastic(x: np.ndarray, strength: float, random: Rng) -> np.ndarray:
    """Elastic deformation with a displacement of `strength` pixels."""
    height, width = x.shape[:2]
    moves = random.standard_normal((2, height, width), dtype=np.float32)
    sigma = max(0.05 * min(height, width), 2.0)
    moves = np.stack([ndimage.gaussian_filter(move, sigma, mode="reflect") for move in moves])
    moves *= strength / max(float(moves.std()), 1e-6)
    places = np.mgrid[:height, :width] + moves
    return np.stack(
        [ndimage.map_coordinates(x[..., c], places, order=1, mode="reflect") for c in range(x.shape[2])], -1
    )


def _convolve(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolve an image with a normalised kernel of odd size, with reflection padding."""
    reach = kernel.shape[0] // 2
    wide = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="symmetric")
    if x.shape[0] <= 64:
        weights = (kernel / kernel.sum())[..., None].astype(np.float32)
        return ndimage.convolve(wide, weights, mode="constant")[reach:-reach, reach:-reach]
    shape = [fft.next_fast_len(side, real=True) for side in wide.shape[:2]]
    spectrum = fft.rfft2(wide, shape, axes=(0, 1)) * fft.rfft2(kernel / kernel.sum(), shape)[..., None]
    found = fft.irfft2(spectrum, shape, axes=(0, 1))
    return found[2 * reach : 2 * reach + x.shape[0], 2 * reach : 2 * reach + x.shape[1]]


def _enlarged(x: np.ndarray, factor: float) -> np.ndarray:
    image = _to_image(x)
    left, top = ((side - side / factor) / 2 for side in image.size)
    box = (left, top, image.width - left, image.height - top)
    return _from_image(image.resize(image.size, Image.Resampling.BILINEAR, box=box))


def _clouds(shape: tuple[int, int], random: Rng) -> np.ndarray:
    """Return fractal noise from 0 to 1, H, W: random grids, each twice as fine with half the weight."""
    total = np.zeros(shape, dtype=np.float32)
    for octave in range(1, 6):
        grid = random.random((2**octave + 1, 2**octave + 1), dtype=np.float32)
        layer = Image.fromarray(grid).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
        total += np.asarray(layer) * 0.5**octave
    return (total - total.min()) / max(float(np.ptp(total)), 1e-6)


def _to_image(x: np.ndarray) -> Image.Image:
    values = np.clip(np.rint(x * 255), 0, 255).astype(np.uint8)
    return Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)


def _from_image(image: Image.Image) -> np.ndarray:
    values = np.asarray(image, dtype=np.float32) / 255
    return values[..., None] if values.ndim == 2 else values


_ALL = (
    Corruption(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.1), (0.08, 0.12, 0.18, 0.26, 0.38)),
    Corruption(shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    Corruption(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    Corruption(speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)),
    Corruption(gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1), (1, 2, 3, 4, 6), length=True),
    Corruption(defocus_blur, (0.6, 0.8, 1, 1.3, 1.7), (3, 4, 6, 8, 10), length=True),
    Corruption(motion_blur, (1.6, 2.2, 2.9, 3.8, 5), (10, 15, 20, 28, 36), length=True),
    Corruption(zoom_blur, (0.06, 0.11, 0.16, 0.21, 0.26), (0.11, 0.16, 0.21, 0.26, 0.31)),
    Corruption(fog, (0.3, 0.5, 0.8, 1.1, 1.5), (0.7, 1.1, 1.5, 2, 2.6)),
    Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    Corruption(contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    Corruption(saturate, (1.3, 1.6, 2, 2.5, 3), (1.5, 2, 3, 5, 8), colour=True),
    Corruption(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    Corruption(jpeg, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
    Corruption(elastic, (0.4, 0.6, 0.8, 1, 1.3), (2, 3, 4, 5, 6), length=True),
)
CORRUPTIONS = {found.change.__name__: found for found in _ALL}
