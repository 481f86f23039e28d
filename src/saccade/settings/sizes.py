"""Image size, patch size, batch size and epochs for a dataset."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from .families import Family
from .schema import TrainConfig
from .values import ConfigError

SMALL_SIDE = 64  # pixels of a side up to which images are small
MIDDLE = 96  # what larger ones are brought to for a model that is made for small ones; a CPU needs to keep up as well
MIN_BATCH_SIZE = 16  # images in a batch that was made smaller
STEP = 32  # pixels in which sizes of images are chosen
CPU_SHARE = 2  # a task's largest side on a GPU, divided by that on a CPU
THIN = 4.0  # pixels of the finest feature map's cells: what is thinner needs larger images


def steps_of_epoch(samples: int, batch_size: int) -> int:
    """Return how many steps an epoch has: whole batches, of a smaller set one; repeated images make it no longer."""
    return max(samples // batch_size, 1)


def side_for(side: int | None, usual: int) -> int:
    """Return the side that images in files are trained at if none is asked for.

    Args:
        side: their typical one; None if it is not known.
        usual: the model's own.

    Returns:
        For small images their own, in steps of 32 pixels, as for images in memory. Else the model's usual side, or at
        most 96 pixels of a model that is made for small ones.
    """
    if side is None or (side > SMALL_SIDE and usual > SMALL_SIDE):
        return usual
    return min(max(side // STEP * STEP, STEP), MIDDLE)


def resized_side(shorter: int, longer: int, longest: int | None) -> int:
    """Return the side of whole images that is resized to the image size, in their own pixels.

    Args:
        shorter: their typical shorter side.
        longer: their typical longer side.
        longest: most pixels that the longer side may have after the shorter one is resized; None: the longer side is
            resized, to fill a square.
    """
    return longer if longest is None else min(shorter, shorter * longest // longer)


def side_of_whole(own_side: int, thinnest: float | None, *, largest: int, gpu: bool) -> tuple[int, str]:
    """Return the image size for whole images, and why it is not larger; a task's details matter.

    Args:
        own_side: their side that is resized to it, see `resized_side`.
        thinnest: pixels across the thinnest class, or a side of the smallest objects, in the images.
        largest: side on a GPU up to which images keep their size; a CPU gets half of it, and twice as much is allowed
            where something would become thinner than a cell of the finest feature map.
    """
    own = max(round(own_side / STEP) * STEP, STEP)
    most = largest if gpu else largest // CPU_SHARE
    limit = f"at most {most} on a {'GPU' if gpu else 'CPU'}"
    if thinnest is not None and own > most and thinnest * most / own_side < THIN:
        most *= 2
        limit = f"at most {most}, since details of {thinnest:.0f} pixels would be lost at {most // 2}"
    return (own, "") if own <= most else (most, limit)


def batch_of_large(batch: int, side: int, usual: int) -> int:
    """Return the batch size whose images have as many pixels as those of a usual side, for larger ones."""
    return batch if side <= usual else max(round(batch * (usual / side) ** 2), 1)


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
    while (
        least is not None
        and samples is not None
        and steps_of_epoch(samples, batch) < least
        and batch >= 2 * MIN_BATCH_SIZE
    ):
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
