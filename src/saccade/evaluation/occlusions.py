"""Pictures with parts missing or out of place: centre occlusion, patch drop, patch shuffle."""

import math

import numpy as np

CENTRE = (0.1, 0.25, 0.5)  # shares of the area; a quarter is the 112 x 112 of 224 of the CB paper's Table 8
DROPPED = (0.25, 0.5, 0.75)  # shares of the patches
PIECES = (2, 4, 8)  # along a side


def occlude_centre(picture: np.ndarray, share: float) -> np.ndarray:
    """Return a picture, uint8 H, W, C, with a black rectangle of its proportions in the middle.

    Args:
        picture: left as it is.
        share: of the area.
    """
    found = picture.copy()
    height, width = picture.shape[:2]
    h, w = (round(side * math.sqrt(share)) for side in (height, width))
    top, left = (height - h) // 2, (width - w) // 2
    found[top : top + h, left : left + w] = 0
    return found


def drop_patches(picture: np.ndarray, share: float, *, word: int) -> np.ndarray:
    """Return a picture, uint8 H, W, C, with random patches black.

    The patches are 1/14 of a side, as a transformer of patch 16 sees 224 pixels; 1/7 where the side is below 112.

    Args:
        picture: left as it is.
        share: of the patches.
        word: what the draws are a function of.
    """
    height, width = picture.shape[:2]
    pieces = min(14 if min(height, width) >= 112 else 7, height, width)
    random = np.random.default_rng([word, 1, round(1000 * share)])
    dropped = random.permutation(pieces * pieces).reshape(pieces, pieces) < round(share * pieces * pieces)
    rows, columns = np.arange(height) * pieces // height, np.arange(width) * pieces // width
    return np.where(dropped[rows[:, None], columns[None], None], np.uint8(0), picture)


def shuffle_patches(picture: np.ndarray, pieces: int, *, word: int) -> np.ndarray:
    """Return a picture, uint8 H, W, C, cut into pieces x pieces and put together in random order.

    Args:
        picture: left as it is; where its side cannot be divided, the rest at the edges stays in its place.
        pieces: along a side.
        word: what the draws are a function of.
    """
    height, width, channels = picture.shape
    h, w = height // pieces, width // pieces
    if not (h and w):
        raise ValueError(f"{pieces} pieces along a side were asked of a picture of {height} x {width} pixels")
    top, left = (height - h * pieces) // 2, (width - w * pieces) // 2
    inner = slice(top, top + h * pieces), slice(left, left + w * pieces)
    cells = picture[inner].reshape(pieces, h, pieces, w, channels).swapaxes(1, 2).reshape(-1, h, w, channels)
    mixed = cells[np.random.default_rng([word, 2, pieces]).permutation(len(cells))]
    found = picture.copy()
    found[inner] = mixed.reshape(pieces, pieces, h, w, channels).swapaxes(1, 2).reshape(h * pieces, -1, channels)
    return found
