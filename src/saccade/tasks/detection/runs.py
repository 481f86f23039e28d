"""Regions as COCO writes them: lengths of runs down the columns, background first; packed into letters or a list."""

from collections.abc import Sequence

import numpy as np

LONGEST = 8  # letters of a number: 40 bits are more than any image has pixels


def pack_runs(mask: np.ndarray, *, corner: tuple[int, int] = (0, 0), size: tuple[int, int] | None = None) -> str:
    """Return which pixels are an object's as letters.

    Args:
        mask: of a part of the image, H, W.
        corner: where that part begins, its first row and column.
        size: height and width of the image; those of the mask if not given.
    """
    height, width = size or mask.shape
    padded = np.pad(np.asarray(mask, dtype=np.int8), ((1, 1), (0, 0)))
    column, row = np.nonzero(np.diff(padded, axis=0).T)  # where runs begin and end, in turn, down the columns
    changes = (column + corner[1]) * height + row + corner[0]
    same = np.flatnonzero(changes[1:] == changes[:-1])  # one run ends where the next column's begins
    changes = np.delete(changes, [*same, *(same + 1)])
    counts = np.diff([0, *changes.tolist(), height * width]).tolist()
    if len(changes) and changes[-1] == height * width:
        counts.pop()
    letters = []
    for place, count in enumerate(counts):
        value = count - counts[place - 2] if place > 2 else count
        while True:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            letters.append(chr(48 + bits + 32 * more))
            if not more:
                break
    return "".join(letters)


def unpack_counts(letters: str | bytes) -> list[int]:
    """Return the lengths of runs that letters stand for, or raise ValueError."""
    codes = letters if isinstance(letters, bytes) else letters.encode()
    counts: list[int] = []
    value = shift = 0
    for code in codes:
        bits = code - 48
        if not 0 <= bits < 64 or shift >= 5 * LONGEST:
            raise ValueError("its runs are not written as COCO packs them")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        value -= (bits & 16) << (shift - 4) if bits & 16 else 0
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its runs break off")
    return counts


def checked_runs(counts: Sequence[int], size: tuple[int, int]) -> list[int]:
    """Return lengths of runs that fill an image, background after the last, or raise ValueError."""
    total = size[0] * size[1]
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) > total:
        raise ValueError(f"its runs are no lengths that fit into the image's {total} pixels")
    rest = total - sum(counts)
    return [*counts, 0, rest] if len(counts) % 2 else [*counts, rest]


def paint_runs(counts: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Return which pixels are an object's, H, W bool; what comes after the last run is background."""
    whole = checked_runs(counts, size)
    return np.repeat(np.arange(len(whole)) % 2 == 1, whole).reshape(size[::-1]).T
