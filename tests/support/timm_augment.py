"""timm's RandAugment and erasing, one operation at a time, for holding ours against them."""

import random
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing

from saccade.data.rand_augment import OPERATIONS

POLICY = "rand-m9-mstd0.5-inc1"
MEAN = (0.485, 0.456, 0.406)
FILL = tuple(round(255 * value) for value in MEAN)
# Our names and timm's.
NAMES = {name: name for name in OPERATIONS} | {
    **{name: f"{name}Increasing" for name in ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")},
    **{name: f"{name}Rel" for name in ("TranslateX", "TranslateY")},
}


@contextmanager
def seeded(seed):
    """Seed what timm draws from, and give the generators back as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    posterize = ImageOps.posterize
    # No bits of a colour are black; newer versions of PIL refuse what timm asks for there.
    ImageOps.posterize = lambda image, bits: posterize(image, bits) if bits else image.point([0] * 256 * 3)
    try:
        yield
    finally:
        ImageOps.posterize = posterize
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def sign(value):
    """Let timm take one side."""
    kept = auto_augment._randomly_negate
    auto_augment._randomly_negate = lambda level: value * level
    try:
        yield
    finally:
        auto_augment._randomly_negate = kept


def to_pil(image):
    return Image.fromarray(image.to(torch.uint8).permute(1, 2, 0).numpy())


def from_pil(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def one(name, image, *, magnitude, spread=0.0, prob=1.0, interpolation=Image.Resampling.BICUBIC):
    """Return timm's operation on an image, C, H, W, bytes in floats."""
    more = {"img_mean": FILL, "interpolation": interpolation, "magnitude_std": spread}
    operation = auto_augment.AugmentOp(NAMES[name], prob=prob, magnitude=magnitude, hparams=more)
    return from_pil(operation(to_pil(image)))


def policy(images):
    """Return what timm's whole policy makes of images, B, C, H, W."""
    made = auto_augment.rand_augment_transform(
        POLICY, {"img_mean": FILL, "interpolation": Image.Resampling.BICUBIC, "translate_const": 100}
    )
    return torch.stack([from_pil(made(to_pil(image))) for image in images])


def erased(images, probability):
    """Return what timm's erasing by noise makes of images, B, C, H, W."""
    return RandomErasing(probability, mode="pixel", max_count=1, device="cpu")(images.clone())


def smooth_images(count, side, seed=0):
    """Return images with shapes and noise, bytes in floats, B, 3, side, side."""
    source = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 5, 5, generator=source)
    large = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    fine = torch.randn(count, 3, side, side, generator=source)
    return (110 + 50 * large + 6 * fine).clamp(0, 255).round()


def statistics(before, after):
    """Return numbers of each image that tell operations apart, by name, each B."""
    flat, change = after.flatten(2), (after - before).abs().flatten(1)
    return {
        "mean": flat.mean((1, 2)),
        "deviation": flat.std(2).mean(1),
        "largest": flat.amax((1, 2)),
        "smallest": flat.amin((1, 2)),
        "change": change.mean(1),
        "left edge": after[..., 0].mean((1, 2)),
        "top edge": after[..., 0, :].mean((1, 2)),
        "colour": (after[:, 0] - after[:, 2]).abs().mean((1, 2)),
        "sharpness": (after[..., 1:] - after[..., :-1]).abs().mean((1, 2, 3)),
    }
