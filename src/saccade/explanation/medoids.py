"""k-medoids: the few members of a set that stand best for all of it."""

from itertools import combinations
from math import comb

import numpy as np

EXHAUSTIVE = 5_000  # choices up to which all are tried
STARTS = 8  # random ones, beside the greedy one


def choose_medoids(distances: np.ndarray, count: int, *, seed: int = 0) -> np.ndarray:
    """Return the members with the least sum of distances from every member to the nearest of them.

    Few choices are all tried, so the answer is exact. Otherwise single exchanges of a medoid and another member are
    made while one lowers the sum (PAM), from a greedy start and from several random ones; the best end is taken.

    Args:
        distances: N, N; symmetric, not negative.
        count: how many to choose, 1 to N.
        seed: of the random starts.

    Returns:
        Their indices in increasing order.
    """
    distances = np.asarray(distances, dtype=np.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or not np.isfinite(distances).all():
        raise ValueError(
            f"distances of shape {distances.shape} were given; a square matrix of finite numbers is needed"
        )
    members = len(distances)
    if not 1 <= count <= members:
        raise ValueError(f"{count} medoids of {members} members were asked for; choose 1 to {members}")
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
    """Return for every member the place of its nearest medoid in `medoids`; a medoid belongs to itself."""
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
    """Make the best exchange of one medoid, again and again until none lowers the cost."""
    cost = medoid_cost(distances, medoids)
    while True:
        best, chosen = cost, None
        for place in range(len(medoids)):
            others = np.delete(medoids, place)
            kept = distances[others].min(axis=0) if len(others) else np.full(len(distances), np.inf)
            costs = np.minimum(distances, kept).sum(axis=1)  # of putting each member in its place
            costs[others] = np.inf
            if costs.min() < best - 1e-12 * cost:
                best, chosen = costs.min(), np.append(others, costs.argmin())
        if chosen is None:
            return medoids
        medoids, cost = np.sort(chosen), float(best)
