"""Which pixels are an object's: polygons and runs as COCO writes them; polygons through faster-coco-eval."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ...data.image import BadSample
from .runs import paint_runs, unpack_counts

MOST = 32_000  # objects of an image: what an int16 counts


def tidy_region(region: Any) -> tuple[Any, str | None]:
    """Return a region without parts that are no polygons, None if nothing is left, and what was wrong with it.

    Args:
        region: a list of polygons x, y, x, y, ..., or one of them; or runs, a mapping of `size` and `counts`.
    """
    if region is None or region == [] or isinstance(region, Mapping):
        return region or None, None
    if not isinstance(region, list):
        return (
            None,
            f"its segmentation is {type(region).__name__}; it is a list of polygons, or runs with size and counts",
        )
    if all(isinstance(value, int | float) for value in region):
        region = [region]
    kept = [one for one in region if isinstance(one, list) and len(one) >= 6 and len(one) % 2 == 0]
    wrong = (
        None if len(kept) == len(region) else "a polygon of it is no list of x, y, x, y, ... of three corners or more"
    )
    return kept or None, wrong


def to_mask(region: Any, size: tuple[int, int]) -> np.ndarray:
    """Return which pixels are an object's, H, W bool, or raise ValueError."""
    if not isinstance(region, Mapping):
        return _fill(region, size)
    given, counts = region.get("size"), region.get("counts")
    if not isinstance(given, Sequence) or list(given) != list(size):
        raise ValueError(f"its runs are of an image of size {given}, this one is {list(size)} (height, width)")
    if not isinstance(counts, list | str | bytes):
        raise ValueError(f"its runs have counts of type {type(counts).__name__}; they are a list or a text")
    return paint_runs(counts if isinstance(counts, list) else unpack_counts(counts), size)


def _fill(polygons: Sequence[Sequence[float]], size: tuple[int, int]) -> np.ndarray:
    reach = max(size)
    for polygon in polygons:
        if not all(isinstance(value, int | float) and -reach <= value <= 2 * reach for value in polygon):
            raise ValueError("a polygon of it has corners that are no numbers, or far outside of the image")
    try:
        tools = import_module("faster_coco_eval.core.mask")
    except ImportError:
        raise ImportError("polygons of objects need faster-coco-eval: pip install 'saccade[dense]'") from None
    runs = tools.merge(tools.frPyObjects([list(map(float, polygon)) for polygon in polygons], *size))
    return np.asarray(tools.decode(runs)).astype(bool)


def paint_objects(regions: Sequence[Any], boxes: np.ndarray, size: tuple[int, int], *, name: str) -> np.ndarray:
    """Return the number of the object that each pixel is of, from 1 on, H, W int32; the smaller one where they overlap.

    Args:
        regions: of the objects; the box of one that has none, or none of whose pixels is there, stands for it.
    """
    if len(regions) > MOST:
        raise BadSample(name, f"it has {len(regions)} objects; at most {MOST} can be told apart", "box")
    pixels = []
    for place, (region, box) in enumerate(zip(regions, boxes, strict=True)):
        try:
            mask = None if region is None else to_mask(region, size)
        except ValueError as error:
            raise BadSample(name, f"object {place + 1}: {error}", "box") from None
        pixels.append(np.flatnonzero(mask if mask is not None and mask.any() else box_mask(box, size)))
    found = np.zeros(size, dtype=np.int32)
    for place in sorted(range(len(pixels)), key=lambda number: -len(pixels[number])):
        found.reshape(-1)[pixels[place]] = place + 1
    return found


def box_mask(box: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the pixels of a box, H, W bool, at least one."""
    left, top = np.floor(box[:2]).clip(0, [size[1] - 1, size[0] - 1]).astype(int)
    right, bottom = np.maximum(np.ceil(box[2:]).astype(int), [left + 1, top + 1])
    found = np.zeros(size, dtype=bool)
    found[top:bottom, left:right] = True
    return found
