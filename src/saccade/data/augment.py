"""Batched augmentation on the batch's device, with independent draws for each image.

Every draw is a function of the image's key (see `draws`), so that an image in an epoch looks the same in any batch,
process or device. `geometry` has the spatial operations. A GPU applies every operation to every image, which avoids
synchronisation; a CPU applies an operation only to the images that it changes.
"""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..settings import AugmentConfig, ConfigError
from .geometry import ERASE, JITTER, MIX, OPERATIONS, RAND, Geometry, change, draw_uniforms, rand_draws
from .photometric import distort
from .rand_augment import Step, erase_pixels


class Mix(NamedTuple):
    """Partners and weights by which the samples of a batch were mixed."""

    partner: Tensor  # B int64: index of the other sample
    share: Tensor  # B: weight of the sample itself, from 0 to 1


Follow = Callable[[Tensor, Mix | None], Tensor]  # maps targets to mixed targets


def blend(values: Tensor, mix: Mix | None) -> Tensor:
    """Mix values, N, ..., with the weights of the images."""
    return values if mix is None else torch.lerp(values[mix.partner], values, mix.share[:, None])


def keep_targets(targets: Tensor, mix: Mix | None) -> Tensor:
    """Return targets unchanged, for tasks that do not mix targets."""
    if mix is not None:
        raise ConfigError(
            "augment.mixup or augment.cutmix is set, but this task's targets cannot be mixed; set both to 0"
        )
    return targets


class Augment:
    """Turn bytes into training images; masks and boxes follow the geometry, `targets` the mixing."""

    def __init__(
        self,
        config: AugmentConfig,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        img_size: int,
        targets: Follow = keep_targets,
        device: torch.device | str = "cpu",
    ) -> None:
        if config.rand_interpolation != "bilinear" and config.rand_kind != "timm":
            raise ConfigError(
                f"augment.rand_interpolation = {config.rand_interpolation} has no effect with augment.rand_kind = "
                f"{config.rand_kind}, which is always bilinear; set augment.rand_kind=timm, or remove it"
            )
        if config.rand_kind == "vilt" and config.rand_ops:
            raise ConfigError(
                "augment.rand_kind = vilt was given, which only the task vqa has; set augment.rand_kind=timm or simple"
            )
        self.config = config
        self.fill = torch.tensor([min(255, round(255 * value)) for value in mean], device=device).float().view(-1, 1, 1)
        self.img_size, self.targets = img_size, targets
        self.normalize = Normalize(mean, std, device=device)
        self.mixup = beta_quantiles(config.mixup).to(device) if config.mixup else None
        self.cutmix = beta_quantiles(config.cutmix).to(device) if config.cutmix else None

    def __call__(self, batch: Mapping[str, Tensor], *, strong: bool = True) -> dict[str, Tensor]:
        """Augment a batch.

        Args:
            batch: `image`, uint8 B, C, H, W; `key`, int64 B, the samples' keys; `target`, B, ...; `mask`, B, H, W,
                and `boxes`, B, M, 4, if there are any.
            strong: False leaves out RandAugment, erasing and mixing.

        Returns:
            The batch with normalised images, B, C, img_size, img_size, transformed masks and boxes, and `target` as the
            loss takes it; `truth` is the original target.
        """
        config = self.config
        pixels, draws = batch["image"], draw_uniforms(batch["key"])
        operations = config.rand_ops if strong else 0
        steps: list[Step] = []
        if config.rand_kind == "timm":
            steps, operations = [Step.draw(batch["key"], number, config) for number in range(operations)], 0
        width = pixels.shape[-1]
        later = [step.moves(pixels.shape[-2] / width) for step in steps]
        moved = self.geometry(batch, draws, operations=operations, later=later)
        images = moved.images(pixels)
        for operation in range(operations):
            images = rand_colour(images, draws, RAND + 4 * operation, config)
        if steps:
            images = images.mul(255).round_().clamp_(0, 255)
            for step in steps:
                images = step(images, self.fill)
            images = images / 255
        if config.jitter:
            images = jitter(images, draws, config.jitter)
        if config.distort:
            images = distort(images, batch["key"], config.distort)
        images = self.normalize(images)
        mix: Mix | None = None
        if strong:
            if config.erase:
                if config.erase_kind == "pixel":
                    images = erase_pixels(images, batch["key"], config.erase)
                else:
                    images = erase(images, draws, config.erase)
            images, mix = self.mix(images, draws)
        found = {name: value for name, value in batch.items() if name not in ("image", "key")}
        if "mask" in batch:
            found["mask"] = moved.mask(batch["mask"])
        if "boxes" in batch:
            found["boxes"] = moved.boxes(batch["boxes"], (pixels.shape[-2], width), cut=False)
        if "label_box" in batch:
            if mix is not None:
                raise ConfigError(
                    "augment.mixup or augment.cutmix is set, but stored patch labels cannot be mixed; set both to 0 "
                    "(MixToken replaces them)"
                )
            size = (pixels.shape[-2], width)
            found["label_box"], found["label_flip"] = moved.parts(batch["label_box"], size)
        if "target" in batch:
            found |= {"truth": batch["target"], "target": self.targets(batch["target"], mix)}
        return {"image": images, **found}

    def geometry(
        self, batch: Mapping[str, Tensor], draws: Tensor, *, operations: int, later: Sequence[Tensor]
    ) -> Geometry:
        """Draw the geometry of a batch."""
        size, width = (self.img_size, self.img_size), batch["image"].shape[-1]
        return Geometry.draw(draws, self.config, width=width, size=size, operations=operations, later=later)

    def plain(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a batch with normalised images and no augmentation."""
        return {**batch, "image": self.normalize(batch["image"])}

    def after_framing(self) -> "Augment":
        """Return the augmentation for images that were already cropped at random by the framing."""
        if self.config.crop != "resized":
            return self
        other = copy.copy(self)
        other.config = replace(self.config, crop="none")
        return other

    def mix(self, images: Tensor, draws: Tensor) -> tuple[Tensor, Mix | None]:
        """Mix neighbouring images of the batch in pairs: first with second, third with fourth."""
        if self.mixup is None and self.cutmix is None:
            return images, None
        place = torch.arange(len(images), device=images.device)
        partner = torch.where((place ^ 1) < len(images), place ^ 1, place)
        mixed = draws[:, MIX] < self.config.mix_prob
        cut = draws[:, MIX + 1] < self.config.switch_prob
        if self.mixup is None or self.cutmix is None:
            cut = torch.full_like(cut, self.mixup is None)
        share = torch.ones_like(draws[:, MIX])  # weight of the image itself
        if self.mixup is not None:
            blend = torch.where(mixed & ~cut, look_up(self.mixup, draws[:, MIX + 2]), 1.0)
            images = change(images, blend < 1, partial(blend_in, images), partner, blend[:, None, None, None])
            share = share * blend
        if self.cutmix is not None:
            area = torch.where(mixed & cut, 1 - look_up(self.cutmix, draws[:, MIX + 3]), 0.0)
            inside = boxes(draws, MIX + 4, area.sqrt(), area.sqrt(), images.shape[-2:])
            images = change(images, area > 0, partial(paste_in, images), partner, inside[:, None])
            share = share * (1 - inside.float().mean((1, 2)))
        return images, Mix(partner, share)


def blend_in(batch: Tensor, images: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Blend images with their partners in the batch (mixup)."""
    return torch.lerp(batch[partner], images, share)


def paste_in(batch: Tensor, images: Tensor, partner: Tensor, inside: Tensor) -> Tensor:
    """Paste boxes of the partners into images (CutMix)."""
    return torch.where(inside, batch[partner], images)


class Normalize:
    """Normalise each channel to zero mean and unit standard deviation."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, device: torch.device | str = "cpu") -> None:
        self.mean = torch.tensor(mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(std, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise B, C, H, W: bytes from 0 to 255, or floats from 0 to 1."""
        if images.dtype == torch.uint8:
            images = images.float().div_(255)
        return (images - self.mean) / self.std


def rand_colour(images: Tensor, draws: Tensor, purpose: int, config: AugmentConfig) -> Tensor:
    """Apply RandAugment's colour operations to images, B, C, H, W, from 0 to 1."""
    operation, strength, sign = (draw[:, None, None, None] for draw in rand_draws(draws, purpose, config))
    if images.device.type != "cpu":
        return recolour(images, operation, strength, sign, of=range(6, OPERATIONS)).clamp(0, 1)
    result = images.clamp(0, 1)
    for number in range(6, OPERATIONS):
        places = (operation == number).flatten().nonzero()[:, 0]
        if len(places):
            own = (draw[places] for draw in (operation, strength, sign))
            result[places] = recolour(images[places], *own, of=(number,)).clamp_(0, 1)
    return result


def recolour(images: Tensor, operation: Tensor, strength: Tensor, sign: Tensor, *, of: Collection[int]) -> Tensor:
    """Apply each image's operation, if it is in `of`."""
    # Brightness, contrast, saturation and sharpness pull an image towards another one, or push it away.
    grey = luminance(images) if 7 in of or 8 in of else images
    other = torch.where(operation == 6, 0.0, images) if 6 in of else images
    if 7 in of:
        other = torch.where(operation == 7, grey.mean((2, 3), keepdim=True), other)
    if 8 in of:
        other = torch.where(operation == 8, grey, other)
    if 9 in of:
        other = torch.where(operation == 9, F.avg_pool2d(images, 3, 1, 1, count_include_pad=False), other)
    if other is not images:
        images = torch.lerp(other, images, 1 + 0.9 * strength * sign)
    if 10 in of:
        low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
        images = torch.where(operation == 10, (images - low) / (high - low).clamp(min=1e-3), images)
    if 11 in of:
        images = torch.where((operation == 11) & (images >= 1 - strength), 1 - images, images)
    if 12 in of:
        levels = 2.0 ** (8 - (4 * strength).floor())
        images = torch.where(operation == 12, (images * levels).floor() / levels, images)
    if 13 in of:
        images = torch.where((operation == 13) & (sign > 0), 1 - images, images)
    return images


def luminance(images: Tensor) -> Tensor:
    """Return the brightness of images, B, 1, H, W."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def jitter(images: Tensor, draws: Tensor, amount: float) -> Tensor:
    """Change brightness, contrast and saturation by up to `amount` each."""
    bright, contrast, colour = ((1 + (2 * draws[:, JITTER + i] - 1) * amount)[:, None, None, None] for i in range(3))
    images = images * bright
    images = torch.lerp(luminance(images).mean((2, 3), keepdim=True), images, contrast)
    return torch.lerp(luminance(images), images, colour).clamp(0, 1)


def erase(images: Tensor, draws: Tensor, probability: float) -> Tensor:
    """Random erasing: fill a box of 2% to 33% of the area with a random colour, in a share of normalised images."""
    area = 0.02 + draws[:, ERASE + 1] * (1 / 3 - 0.02)
    area = torch.where(draws[:, ERASE] < probability, area, 0.0)
    ratio = torch.exp((2 * draws[:, ERASE + 2] - 1) * math.log(1 / 0.3))
    inside = boxes(draws, ERASE + 3, (area / ratio).sqrt(), (area * ratio).sqrt(), images.shape[-2:], whole=True)
    colour = torch.stack([4 * draws[:, ERASE + 5 + c % 4] - 2 for c in range(images.shape[1])], dim=1)
    return torch.where(inside[:, None], colour[:, :, None, None].to(images.dtype), images)


def boxes(
    draws: Tensor, purpose: int, height: Tensor, width: Tensor, size: Sequence[int], *, whole: bool = False
) -> Tensor:
    """Return a mask of a random box in each image, bool, B, H, W.

    Args:
        draws: the images' draws, B, PURPOSES.
        purpose: index of the first of two draws.
        height: height of the box, as a fraction of the image's.
        width: width of the box, as a fraction of the image's.
        size: the image's height and width in pixels.
        whole: keep the box within the image; else its centre may be anywhere.
    """
    inside = []
    for axis, (share, length) in enumerate(zip((height, width), size, strict=True)):
        extent = (share.clamp(max=1) * length).round()
        free = length - extent if whole else torch.full_like(extent, length)
        begin = (draws[:, purpose + axis] * (free + whole)).floor() - (0 if whole else (extent / 2).floor())
        place = torch.arange(length, device=draws.device)
        inside.append((place >= begin[:, None]) & (place < (begin + extent)[:, None]))
    rows, columns = inside
    return rows[:, :, None] & columns[:, None, :]


def beta_quantiles(alpha: float, knots: int = 1025) -> Tensor:
    """Return quantiles of Beta(alpha, alpha) at evenly spaced probabilities, for `look_up`."""
    from scipy.special import betaincinv  # slow to import

    if alpha < 0:
        raise ValueError(f"alpha = {alpha} for mixing images; it must be positive, or 0 for none")
    return torch.from_numpy(betaincinv(alpha, alpha, np.linspace(0, 1, knots))).float()


def look_up(table: Tensor, share: Tensor) -> Tensor:
    """Return the quantile at a probability from 0 to 1, by linear interpolation of the table."""
    place = share * (len(table) - 1)
    below = place.long().clamp(max=len(table) - 2)
    return torch.lerp(table[below], table[below + 1], place - below)
