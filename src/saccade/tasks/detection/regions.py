"""Object masks from COCO polygons and RLE."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ...data.image import BadSample
from .runs import checked_runs, paint_runs, unpack_counts

MAX_OBJECTS = 32_000  # most objects per image, limited by int16
MOST_LAYERS = 4  # most layers for overlapping masks


def clean_region(region: Any) -> tuple[Any, str | None]:
    """Remove invalid polygons of a region; return it (None if nothing is left) and the problem.

    Args:
        region: one or several polygons x, y, x, y, ...; or RLE, a mapping of `size` and `counts`.
    """
    if region is None or region == [] or isinstance(region, Mapping):
        return region or None, None
    if not isinstance(region, list):
        return (
            None,
            f"its segmentation is {type(region).__name__}; it must be a list of polygons, or an RLE with size and "
            "counts",
        )
    if all(isinstance(value, int | float) for value in region):
        region = [region]
    kept = [one for one in region if isinstance(one, list) and len(one) >= 6 and len(one) % 2 == 0]
    wrong = (
        None
        if len(kept) == len(region)
        else "one of its polygons is not a list of x, y, x, y, ... with three corners or more"
    )
    return kept or None, wrong


def to_mask(region: Any, size: tuple[int, int]) -> np.ndarray:
    """Return an object's mask, H, W bool, or raise ValueError."""
    if isinstance(region, Mapping):
        return paint_runs(_counts(region, size), size)
    return np.asarray(_tools().decode(_fill(region, size))).astype(bool)


def _counts(region: Mapping[str, Any], size: tuple[int, int]) -> list[int]:
    given, counts = region.get("size"), region.get("counts")
    if not isinstance(given, Sequence) or list(given) != list(size):
        raise ValueError(f"its RLE is for an image of size {given}, but this image is {list(size)} (height, width)")
    if not isinstance(counts, list | str | bytes):
        raise ValueError(f"its RLE has counts of type {type(counts).__name__}; they must be a list or a string")
    return counts if isinstance(counts, list) else unpack_counts(counts)


def _fill(polygons: Sequence[Sequence[float]], size: tuple[int, int]) -> Any:
    """Convert polygons to faster-coco-eval's format."""
    reach = max(size)
    for polygon in polygons:
        if not all(isinstance(value, int | float) and -reach <= value <= 2 * reach for value in polygon):
            raise ValueError("one of its polygons has corners that are not numbers, or far outside the image")
    tools = _tools()
    return tools.merge(tools.frPyObjects([list(map(float, polygon)) for polygon in polygons], *size))


def _tools() -> Any:
    try:
        return import_module("faster_coco_eval.core.mask")
    except ImportError:
        raise ImportError("object masks need faster-coco-eval: pip install 'saccade[dense]'") from None


def paint_objects(
    regions: Sequence[Any], boxes: np.ndarray, size: tuple[int, int], *, name: str, layers: int = 1
) -> np.ndarray:
    """Return the object number of each pixel, counted from 1, layers, H, W int32.

    Overlapping objects are in different layers while there are any left; otherwise the smaller one is on top.

    Args:
        regions: regions of the objects; objects without visible pixels are replaced by their box.
    """
    if len(regions) > MAX_OBJECTS:
        raise BadSample(name, f"it has {len(regions)} objects; at most {MAX_OBJECTS} can be distinguished", "box")
    pixels = []
    for place, (region, box) in enumerate(zip(regions, boxes, strict=True)):
        try:
            mask = None if region is None else to_mask(region, size)
        except ValueError as error:
            raise BadSample(name, f"object {place + 1}: {error}", "box") from None
        pixels.append(np.flatnonzero(mask if mask is not None and mask.any() else box_mask(box, size)))
    found = np.zeros((layers, size[0] * size[1]), dtype=np.int32)
    for place in sorted(range(len(pixels)), key=lambda number: -len(pixels[number])):
        free = ~found[:, pixels[place]].any(1)
        found[int(free.argmax()) if free.any() else -1, pixels[place]] = place + 1
    return found.reshape(layers, *size)


def layers_needed(regions: Sequence[Any], boxes: np.ndarray, size: tuple[int, int]) -> int:
    """Return the number of layers that an image's objects need, at most `MOST_LAYERS`; 1 if a region is invalid."""
    close = np.flatnonzero(_meets_another(boxes)).tolist()
    try:
        kept = [_keep(regions[place], boxes[place], size) for place in close]
    except ValueError:
        return 1  # reported when the sample is read
    runs, areas = [one for one, _ in kept], np.array([area for _, area in kept], dtype=np.int64)
    shared = np.asarray(_tools().iou(runs, runs, [0] * len(runs))) > 0
    layer = np.full(len(runs), -1)
    for place in np.argsort(-areas, kind="stable"):
        layer[place] = next(number for number in range(len(runs)) if number not in layer[shared[place]])
    return min(int(layer.max(initial=0)) + 1, MOST_LAYERS)


def _meets_another(boxes: np.ndarray) -> np.ndarray:
    whole = np.concatenate([np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])], axis=1)
    ends, starts = np.minimum(whole[:, None], whole)[..., 2:], np.maximum(whole[:, None], whole)[..., :2]
    return np.asarray((ends > starts).all(-1).sum(1) > 1)  # each overlaps itself


def _keep(region: Any, box: np.ndarray, size: tuple[int, int]) -> tuple[Any, int]:
    """Return an object's region in faster-coco-eval's format, and its area."""
    tools = _tools()
    if isinstance(region, Mapping):
        counts = checked_runs(_counts(region, size), size)
        kept, area = tools.frPyObjects({"size": list(size), "counts": counts}, *size), sum(counts[1::2])
    elif region is not None:
        kept = _fill(region, size)
        area = int(tools.area(kept))
    if region is not None and area:
        return kept, area
    mask = box_mask(box, size)
    return tools.encode(np.asfortranarray(mask.astype(np.uint8))), int(mask.sum())


def box_mask(box: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the mask of a box, H, W bool, at least one pixel."""
    left, top = np.floor(box[:2]).clip(0, [size[1] - 1, size[0] - 1]).astype(int)
    right, bottom = np.maximum(np.ceil(box[2:]).astype(int), [left + 1, top + 1])
    found = np.zeros(size, dtype=bool)
    found[top:bottom, left:right] = True
    return found
