"""Settings that are left to the images and the run: size, how many make a batch, how strongly they are augmented."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..config import AugmentConfig, ConfigError, TrainConfig, overlay
from ..data.draws import steps_of_epoch
from ..data.source import Source, Stream
from ..models._builder import OPTIONS_ABOVE_SMALL, SMALL_SIDE
from ..wording import count_of

MIDDLE = 96  # what larger ones are brought to for a model that is made for small ones; a CPU needs to keep up as well
SAMPLED = 48  # images whose size is looked at
FEWEST = 16  # images in a batch that was made smaller
FEW = 5000  # photographs that are few to learn from alone
CIFAR = "cifar"  # recipe of sets like it
MANY, SMALLEST = 16_000, 32  # images, and pixels that they are trained at, from where and up to where it is taken
FROM_SCRATCH = (
    "training from random weights on only {samples} images; pretrained weights are usually far more accurate: "
    "--pretrained (timm's, with --model NAME) or --checkpoint FILE|RUN, see docs/finetuning.md"
)
FORWARD = 0.3  # of a sample's time in training: to be asked about
PLAIN = 15  # epochs of a run, up to which it is best off without augmentation that grows with them
HIGHEST = {"rand_magnitude": 10.0, "mix_prob": 1.0, "erase": 1.0, "jitter": 1.0}  # that augmentation can be made
SAY_STRENGTH = ("rand_ops", "rand_magnitude", "mixup", "cutmix", "mix_prob", "erase", "jitter")  # settings of `augment`
VALIDATING, VALIDATIONS = 0.03, 20  # share of a run's time that they take; of the epochs asked for, so many at least


def side_for(side: int | None, usual: int, *, largest: int | None = None) -> int:
    """Return the side that images in files are trained at if none is asked for.

    Args:
        side: their typical one; None if it is not known.
        usual: the model's own.
        largest: of a task for whose answers details matter: what larger images are brought to.

    Returns:
        The usual side of a model for large images; for one that is made for small ones, that of the images
        themselves, in steps of 32 pixels and at most 96. With `largest` the images' own, whatever the model's.
    """
    if side is not None and largest is not None:
        return min(max(side // 32 * 32, 32), largest)
    return usual if side is None or usual > SMALL_SIDE else min(max(side // 32 * 32, usual), MIDDLE)


def options_for(name: str, options: dict[str, Any], side: int) -> dict[str, Any]:
    """Return a model's options with those that it asks for where images are larger than what it was made for."""
    more = OPTIONS_ABOVE_SMALL.get(name, {}) if side > SMALL_SIDE else {}
    return options | {option: value for option, value in more.items() if option not in options}


def typical_side(data: Source | Stream) -> int | None:
    """Return the middle one of some files' shorter sides, from their headers; None if there are none to read."""
    sides = []
    if isinstance(data, Stream) or data.array() is not None:
        return None
    for index in range(0, len(data), -(-len(data) // SAMPLED)):
        raw = data.raw(index)
        try:
            with Image.open(raw if isinstance(raw, Path) else io.BytesIO(raw or b"")) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, Image.DecompressionBombError):
            continue  # a bad image is told of when it is read
    return int(np.median(sides)) if sides else None


def is_like_cifar(data: Source | Stream, limit: int | None) -> bool:
    """Tell whether training images are so many and so small that they have a recipe of their own."""
    if isinstance(data, Stream):
        return False
    array = data.array()
    side = side_for(typical_side(data), SMALLEST) if array is None else array.shape[1]
    return _many_small(min(len(data), limit or len(data)), side)


def _many_small(samples: int, side: int) -> bool:
    return samples >= MANY and side <= SMALLEST


def batch_for(config: TrainConfig, samples: int | None, *, few_rate: float | None = None) -> tuple[int, float]:
    """Return batch size and learning rate such that an epoch has as many steps as the settings ask for at least.

    Batches are halved, and the learning rate falls by the root of a half each time, as suits optimizers that divide by
    the gradient's size.

    Args:
        few_rate: what it falls from; the settings' own if not given.
    """
    batch, least, halvings = config.optim.batch_size, config.optim.least_steps, 0
    while least is not None and samples is not None and steps_of_epoch(samples, batch) < least and batch >= 2 * FEWEST:
        batch, halvings = batch // 2, halvings + 1
    if not halvings:
        return batch, config.optim.lr
    rate = config.optim.lr if few_rate is None else few_rate
    return batch, float(f"{rate * 0.5 ** (halvings / 2):.3g}")


def settle_strength(config: TrainConfig, epochs: int) -> TrainConfig:
    """Return settings whose augmentation suits a run of so many epochs, if they say what is the length for all of it.

    A run that sees its images a few times does not learn them by heart, and what makes them harder costs it accuracy.
    """
    if config.augment.full_epochs is None:
        return config
    strength = _share_of_full(config.augment.full_epochs, epochs)
    weaker = strength_settings(config.augment, strength) if strength < 1 else {}
    return overlay(config, {**weaker, "augment.full_epochs": None})


def _share_of_full(full: int, epochs: int) -> float:
    """Return how strong augmentation is in a run of so many epochs, of what it is in one of `full`."""
    return min(max(epochs - PLAIN, 0) / max(full - PLAIN, 1), 1.0)


def settled_strength(resolved: TrainConfig) -> dict[str, Any]:
    """Return the settings that keep augmentation as strong as it was made, however long another run is."""
    return {f"augment.{name}": getattr(resolved.augment, name) for name in (*SAY_STRENGTH, "full_epochs")}


def strength_settings(augment: AugmentConfig, strength: float) -> dict[str, Any]:
    """Return the settings that make augmentation so many times as strong as a recipe has it; empty if it has none."""
    found: dict[str, Any] = {}
    if augment.rand_ops:
        found["augment.rand_magnitude"] = min(augment.rand_magnitude * strength, HIGHEST["rand_magnitude"])
        found |= {"augment.rand_ops": 0} if strength == 0 else {}
    if augment.mixup or augment.cutmix:
        found["augment.mix_prob"] = min(augment.mix_prob * strength, 1.0)
    for name in ("erase", "jitter"):
        if value := getattr(augment, name):
            found[f"augment.{name}"] = min(value * strength, HIGHEST[name])
    return {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in found.items()}


def validate_every(config: TrainConfig, train: int, val: int) -> int:
    """Return after how many epochs to validate where nobody watches, so that it takes a small share of the time.

    What is set, and what stops by validations, stays as it is.

    Args:
        train: training samples, before `data.train_limit`.
        val: validation samples.
    """
    if config.keep.evaluate_every != 1 or config.schedule.patience is not None:
        return config.keep.evaluate_every
    share = FORWARD * val / max(min(train, config.data.train_limit or train), 1)
    return max(min(math.ceil(share / VALIDATING), config.schedule.epochs // VALIDATIONS), 1)


def epochs_for(config: TrainConfig, samples: int | None, batch: int) -> int:
    """Return how many epochs there are, from the length in steps where the settings count so."""
    steps = config.schedule.steps
    if steps is None:
        return config.schedule.epochs
    if samples is None:
        raise ConfigError(
            "schedule.steps was given, but the number of samples of the dataset is unknown; give --epochs instead"
        )
    return math.ceil(steps / steps_of_epoch(samples, batch))


def notes_on(config: TrainConfig, resolved: TrainConfig, *, side: int | None, samples: int | None) -> list[str]:
    """Return what a user should know of the settings that were left to the images."""
    notes = []
    size = resolved.data.img_size
    random = resolved.model.checkpoint is None and not resolved.model.pretrained
    if random and side is not None and side > SMALL_SIDE and samples is not None and samples <= FEW:
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
        share = _share_of_full(config.augment.full_epochs, resolved.schedule.epochs)
        notes.append(
            f"{count_of(resolved.schedule.epochs, 'epoch')}: "
            + ("RandAugment and mixing are off" if share == 0 else f"augmentation strength scaled to {share:.2g}")
            + f"; runs under {config.augment.full_epochs} epochs train better with less "
            "(override with --set augment.full_epochs=null)"
        )
    return notes
