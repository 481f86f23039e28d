"""Sizes that suit a set of samples: of images, patches, batches and epochs."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from .families import Family
from .schema import TrainConfig
from .values import ConfigError

SMALL_SIDE = 64  # pixels of a side up to which images are small
MIDDLE = 96  # what larger ones are brought to for a model that is made for small ones; a CPU needs to keep up as well
FEWEST = 16  # images in a batch that was made smaller


def steps_of_epoch(samples: int, batch_size: int) -> int:
    """Return how many steps an epoch has: whole batches, of a smaller set one; repeated images make it no longer."""
    return max(samples // batch_size, 1)


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


def options_above_small(options: Mapping[str, Any], side: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's options with `more`, which it asks for where images are larger than what it was made for."""
    wanted = more if side > SMALL_SIDE else {}
    return {**options, **{name: value for name, value in wanted.items() if name not in options}}


def patches_for(config: TrainConfig, family: Family, name: str, side: int) -> dict[str, Any]:
    """Return options that give a model enough patches of small images, unless it has options or starts from weights."""
    model = config.model
    if family.patches is None or side > SMALL_SIDE or not fnmatchcase(name, family.only):
        return {}
    if model.options or model.pretrained or model.checkpoint is not None:
        return {}
    wanted = side / family.patches
    patch = min((size for size in range(1, side + 1) if side % size == 0), key=lambda size: (abs(size - wanted), size))
    stride = {} if family.strides is None else {"stride": max(round(side / family.strides), 1)}
    return {"patch_size": patch, **stride, **family.options}


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
