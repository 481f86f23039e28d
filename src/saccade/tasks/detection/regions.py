"""Which pixels are an object's: polygons and runs as COCO writes them, through faster-coco-eval."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ...data.image import BadSample

EXTRA = "faster-coco-eval: pip install 'saccade[dense]'"
MOST = 32_000  # objects of an image: what an int16 counts


def mask_tools() -> Any:
    """Return the functions that read runs, or say what to install."""
    try:
        return import_module("faster_coco_eval.core.mask")
    except ImportError:
        raise ImportError(f"masks of objects need {EXTRA}") from None


def region_problem(region: Any, size: tuple[int, int]) -> str | None:
    """Return what is wrong with an object's region; None if nothing is.

    Args:
        region: polygons, a list of lists x, y, x, y, ...; or runs, a mapping of `size` and `counts`; None for a box.
        size: height and width of the image.
    """
    if region is None:
        return None
    if isinstance(region, Mapping):
        given, counts = region.get("size"), region.get("counts")
        if not isinstance(given, Sequence) or list(given) != list(size):
            return f"its runs are of an image of size {given}, this one is {list(size)} (height, width)"
        if isinstance(counts, list):
            if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) != size[0] * size[1]:
                return f"its runs do not add up to the image's {size[0] * size[1]} pixels"
            return None
        return None if isinstance(counts, str | bytes) and counts else "its runs have no counts"
    if not isinstance(region, Sequence) or isinstance(region, str | bytes) or not region:
        return f"its segmentation is {type(region).__name__}; it is a list of polygons, or runs with size and counts"
    for polygon in region:
        numbers = isinstance(polygon, Sequence) and all(isinstance(v, int | float) and np.isfinite(v) for v in polygon)
        if not numbers or len(polygon) < 6 or len(polygon) % 2:
            return "a polygon of it is no list of x, y, x, y, ... with three corners or more"
    return None


def to_runs(region: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return a region that has no problem as compressed runs."""
    tools = mask_tools()
    if isinstance(region, Mapping):
        if isinstance(region["counts"], list):
            return dict(tools.frPyObjects(dict(region), *size))
        counts = region["counts"]
        return {"size": list(size), "counts": counts.encode() if isinstance(counts, str) else counts}
    return dict(tools.merge(tools.frPyObjects([list(map(float, polygon)) for polygon in region], *size)))


def to_mask(region: Any, size: tuple[int, int], *, name: str) -> np.ndarray:
    """Return which pixels are an object's, H, W bool, or raise BadSample."""
    problem = region_problem(region, size)
    if problem is None:
        try:
            found = np.asarray(mask_tools().decode(to_runs(region, size)))
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            problem = f"its runs cannot be read: {error}"
        else:
            if found.shape == tuple(size):
                return found.astype(bool)
            problem = f"its runs are of {found.shape}, the image is {tuple(size)}"
    raise BadSample(name, problem, "box")


def paint_objects(regions: Sequence[Any], size: tuple[int, int], *, name: str) -> np.ndarray:
    """Return the number of the object that each pixel is of, from 1 on, H, W int32; the smaller of two that overlap."""
    if len(regions) > MOST:
        raise BadSample(name, f"it has {len(regions)} objects; at most {MOST} can be told apart", "box")
    masks = [None if region is None else to_mask(region, size, name=name) for region in regions]
    areas = [0 if mask is None else int(mask.sum()) for mask in masks]
    found = np.zeros(size, dtype=np.int32)
    for place in sorted(range(len(masks)), key=lambda number: -areas[number]):
        mask = masks[place]
        if mask is not None:
            found[mask] = place + 1
    return found
