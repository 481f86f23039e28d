"""COCO RLE: run lengths in column-major order, background first, as compressed text or a list."""

from collections.abc import Sequence

import numpy as np

LONGEST = 8  # most characters of a number, 40 bits


def pack_runs(mask: np.ndarray, *, corner: tuple[int, int] = (0, 0), size: tuple[int, int] | None = None) -> str:
    """Encode a mask as compressed RLE.

    Args:
        mask: mask of a part of the image, H, W.
        corner: first row and column of that part.
        size: height and width of the image; default: the mask's.
    """
    height, width = size or mask.shape
    padded = np.pad(np.asarray(mask, dtype=np.int8), ((1, 1), (0, 0)))
    column, row = np.nonzero(np.diff(padded, axis=0).T)  # alternating starts and ends of runs, in column-major order
    changes = (column + corner[1]) * height + row + corner[0]
    same = np.flatnonzero(changes[1:] == changes[:-1])  # merge runs across columns
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
    """Decode compressed RLE to run lengths, or raise ValueError."""
    codes = letters if isinstance(letters, bytes) else letters.encode()
    counts: list[int] = []
    value = shift = 0
    for code in codes:
        bits = code - 48
        if not 0 <= bits < 64 or shift >= 5 * LONGEST:
            raise ValueError("its RLE is not in COCO's compressed format")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        value -= (bits & 16) << (shift - 4) if bits & 16 else 0
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its RLE is truncated")
    return counts


def checked_runs(counts: Sequence[int], size: tuple[int, int]) -> list[int]:
    """Complete run lengths to an image with background, or raise ValueError."""
    total = size[0] * size[1]
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) > total:
        raise ValueError(f"the run lengths of its RLE do not fit the image's {total} pixels")
    rest = total - sum(counts)
    return [*counts, 0, rest] if len(counts) % 2 else [*counts, rest]


def paint_runs(counts: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Decode run lengths to a mask, H, W bool; the rest is background."""
    whole = checked_runs(counts, size)
    return np.repeat(np.arange(len(whole)) % 2 == 1, whole).reshape(size[::-1]).T
