"""Defaults that depend on the images and the run: image size, batch size and augmentation strength."""

import io
import math
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.source import Source, Stream
from ..settings import TrainConfig
from ..settings.sizes import SMALL_SIDE, side_for, steps_of_epoch
from ..settings.strength import share_of_full
from ..support.wording import count_of

SAMPLED = 48  # images whose size is read
FEW_PHOTOGRAPHS = 5000  # fewer photographs are too few to train from scratch
CIFAR = "cifar"  # recipe for datasets like CIFAR
MIN_CIFAR_SAMPLES, MAX_CIFAR_SIDE = 16_000, 32  # least number of images and largest image size for that recipe
FROM_SCRATCH = (
    "training from random weights on only {samples} images; pretrained weights are usually far more accurate: "
    "--pretrained (timm's, with --model NAME) or --checkpoint FILE|RUN, see docs/finetuning.md"
)
FORWARD = 0.3  # time of a forward pass, relative to training on a sample
VALIDATING, VALIDATIONS = 0.03, 20  # most of a run's time, and least number of validations


def typical_side(data: Source | Stream) -> int | None:
    """Return the median shorter side of some files, from their headers; None if none can be read."""
    return (typical_sides(data) or (None,))[0]


def typical_sides(data: Source | Stream) -> tuple[int, int] | None:
    """Return the median shorter and longer side of some files, from their headers; None if none can be read."""
    sides = []
    if isinstance(data, Stream) or data.array() is not None:
        return None
    for index in range(0, len(data), -(-len(data) // SAMPLED)):
        raw = data.raw(index)
        try:
            with Image.open(raw if isinstance(raw, Path) else io.BytesIO(raw or b"")) as image:
                sides.append((min(image.size), max(image.size)))
        except (OSError, ValueError, Image.DecompressionBombError):
            continue  # a bad image is reported when it is read
    if not sides:
        return None
    shorter, longer = np.median(sides, axis=0).astype(int).tolist()
    return shorter, longer


def is_like_cifar(data: Source | Stream, limit: int | None) -> bool:
    """Whether there are many small training images, for which there is a separate recipe."""
    if isinstance(data, Stream):
        return False
    array = data.array()
    side = side_for(typical_side(data), MAX_CIFAR_SIDE) if array is None else array.shape[1]
    return _many_small(min(len(data), limit or len(data)), side)


def _many_small(samples: int, side: int) -> bool:
    return samples >= MIN_CIFAR_SAMPLES and side <= MAX_CIFAR_SIDE


def validate_every(config: TrainConfig, train: int, val: int) -> int:
    """Return the validation interval in epochs that limits validation to a small share of the time.

    An interval that is set, and that of runs with early stopping, is not changed.

    Args:
        train: number of training samples, before `data.train_limit`.
        val: number of validation samples.
    """
    if config.keep.evaluate_every != 1 or config.schedule.patience is not None:
        return config.keep.evaluate_every
    share = FORWARD * val / max(min(train, config.data.train_limit or train), 1)
    return max(min(math.ceil(share / VALIDATING), config.schedule.epochs // VALIDATIONS), 1)


def notes_on(config: TrainConfig, resolved: TrainConfig, *, side: int | None, samples: int | None) -> list[str]:
    """Return notes on settings that were derived from the images."""
    notes = []
    size = resolved.data.img_size
    random = resolved.model.checkpoint is None and not resolved.model.pretrained
    if random and side is not None and side > SMALL_SIDE and samples is not None and samples <= FEW_PHOTOGRAPHS:
        notes.append(FROM_SCRATCH.format(samples=samples))
    ours = (config.recipe, resolved.model.name, config.optim.name) == ("small", "glnet_nano", "adamw")
    if ours and random and samples is not None and size is not None and _many_small(samples, size):
        notes.append(
            f"{samples:,} images of {size} pixels: --recipe {CIFAR} is made for such datasets, see docs/training.md"
        )
    if config.data.img_size is None and side not in (None, size):
        notes.append(f"input resolution {size} for images of about {side} pixels (override with --img-size)")
    if resolved.optim.batch_size != config.optim.batch_size:
        now, before = resolved.optim, config.optim
        notes.append(
            f"{count_of(samples or 0, 'training sample')}: batch size {now.batch_size} instead of "
            f"{before.batch_size} and learning rate {now.lr:g}, for more steps per epoch "
            "(override with --batch-size and --lr)"
        )
    elif samples is not None and samples < 4 * resolved.optim.batch_size:
        steps = steps_of_epoch(samples, resolved.optim.batch_size)
        notes.append(
            f"{count_of(samples, 'training sample')} with batch size {resolved.optim.batch_size}: only "
            f"{count_of(steps, 'step')} per epoch; a smaller --batch-size or more --epochs may help"
        )
    if config.augment.full_epochs is not None and resolved.schedule.epochs < config.augment.full_epochs:
        share = share_of_full(config.augment.full_epochs, resolved.schedule.epochs)
        notes.append(
            f"{count_of(resolved.schedule.epochs, 'epoch')}: "
            + ("RandAugment and mixing are off" if share == 0 else f"augmentation strength scaled to {share:.2g}")
            + f"; runs under {config.augment.full_epochs} epochs train better with less "
            "(override with --set augment.full_epochs=null)"
        )
    return notes
