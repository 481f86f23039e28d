"""k-medoids clustering."""

from itertools import combinations
from math import comb

import numpy as np

EXHAUSTIVE = 5_000  # combinations up to which all are tried
STARTS = 8  # random starts besides the greedy one


def choose_medoids(distances: np.ndarray, count: int, *, seed: int = 0) -> np.ndarray:
    """Return the medoids with the least sum of distances of all members to the nearest medoid.

    For few combinations the result is exact. Otherwise medoids are swapped with other members while that lowers the
    sum (PAM), from a greedy and several random starts, of which the best is taken.

    Args:
        distances: N, N; symmetric, not negative.
        count: number of medoids, 1 to N.
        seed: random seed of the starts.

    Returns:
        Their indices in increasing order.
    """
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or not np.isfinite(distances).all():
        raise ValueError(f"got distances of shape {distances.shape}; expected a square matrix of finite numbers")
    members = len(distances)
    if not 1 <= count <= members:
        raise ValueError(f"cannot choose {count} medoids of {members} members; choose 1 to {members}")
    if comb(members, count) <= EXHAUSTIVE:
        choices = np.array(list(combinations(range(members), count)))
        costs = distances[choices].min(axis=1).sum(axis=1)  # choices, count, N -> choices
        return choices[costs.argmin()]
    generator = np.random.default_rng(seed)
    starts = [_greedy(distances, count)]
    starts += [generator.choice(members, count, replace=False) for _ in range(STARTS)]
    ends = [_exchange(distances, np.sort(start)) for start in starts]
    return min(ends, key=lambda end: medoid_cost(distances, end))


def medoid_cost(distances: np.ndarray, medoids: np.ndarray) -> float:
    """Return the sum of distances from every member to the nearest medoid."""
    return float(distances[medoids].min(axis=0).sum())


def assign(distances: np.ndarray, medoids: np.ndarray) -> np.ndarray:
    """Return the index in `medoids` of every member's nearest medoid."""
    nearest = distances[medoids].argmin(axis=0)
    nearest[medoids] = np.arange(len(medoids))
    return nearest


def _greedy(distances: np.ndarray, count: int) -> np.ndarray:
    chosen: list[int] = []
    nearest = np.full(len(distances), np.inf)
    for _ in range(count):
        costs = np.minimum(distances, nearest).sum(axis=1)
        costs[chosen] = np.inf
        chosen.append(int(costs.argmin()))
        nearest = np.minimum(nearest, distances[chosen[-1]])
    return np.sort(np.array(chosen))


def _exchange(distances: np.ndarray, medoids: np.ndarray) -> np.ndarray:
    """Repeat the best swap of one medoid until none lowers the cost."""
    cost = medoid_cost(distances, medoids)
    while True:
        best, chosen = cost, None
        for place in range(len(medoids)):
            others = np.delete(medoids, place)
            kept = distances[others].min(axis=0) if len(others) else np.full(len(distances), np.inf)
            costs = np.minimum(distances, kept).sum(axis=1)  # cost of each possible swap
            costs[others] = np.inf
            if costs.min() < best - 1e-12 * cost:
                best, chosen = costs.min(), np.append(others, costs.argmin())
        if chosen is None:
            return medoids
        medoids, cost = np.sort(chosen), float(best)
