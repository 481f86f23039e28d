"""How far two answers to one image lie apart, whatever the order of their rows."""

import numpy as np

from .detector import CELLS, LABEL, SCORE

MARGIN = 1.2  # times the least score: what lies nearer to where answers begin to count may fall on either side


def answers_apart(first: np.ndarray, second: np.ndarray, *, least: float) -> float:
    """Return the largest difference of a row that counts from the nearest one of its class in the other answers.

    Rows come by falling scores, and those of nearly equal scores may change places.

    Args:
        first: raw answers, B, M, columns.
        least: score from which answers count.
    """
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    pairs = [(a, b) for one, two in zip(first, second, strict=True) for a, b in ((one, two), (two, one))]
    return max((_farthest(a[a[:, SCORE] >= least * MARGIN], b) for a, b in pairs), default=0.0)


def _farthest(rows: np.ndarray, others: np.ndarray) -> float:
    worst = 0.0
    for row in rows:
        same = others[others[:, LABEL] == row[LABEL]]
        if not len(same):
            return float("inf")
        apart = np.abs(same[:, : SCORE + 1] - row[: SCORE + 1]).max(1)
        best = int(apart.argmin())
        worst = max(worst, float(apart[best]), float(np.abs(same[best, CELLS:] - row[CELLS:]).max(initial=0.0)))
    return worst
