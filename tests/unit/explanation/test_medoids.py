from itertools import combinations

import numpy as np
import pytest

from saccade.explanation import medoids as module
from saccade.explanation.medoids import assign, choose_medoids, medoid_cost


def distances(count, seed=0):
    points = np.random.default_rng(seed).random((count, 3))
    return np.abs(points[:, None] - points[None]).sum(-1)


def brute_force(matrix, count):
    return min(medoid_cost(matrix, np.array(choice)) for choice in combinations(range(len(matrix)), count))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_few_choices_are_solved_exactly(count, seed):
    matrix = distances(11, seed)
    assert medoid_cost(matrix, choose_medoids(matrix, count)) == pytest.approx(brute_force(matrix, count))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_exchanges_reach_the_exact_cost(count, seed, monkeypatch):
    monkeypatch.setattr(module, "EXHAUSTIVE", 0)
    matrix = distances(14, seed)
    chosen = choose_medoids(matrix, count)
    assert len(set(chosen.tolist())) == count
    assert medoid_cost(matrix, chosen) == pytest.approx(brute_force(matrix, count))


def test_clear_groups_give_one_medoid_each():
    centres = np.repeat(np.array([0.0, 10.0, 20.0, 30.0]), 16)
    points = centres + np.random.default_rng(1).normal(0, 0.1, 64)
    matrix = np.abs(points[:, None] - points[None])
    chosen = choose_medoids(matrix, 4)
    assert (chosen // 16).tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(assign(matrix, chosen), np.repeat(np.arange(4), 16))


def test_equal_members_still_give_as_many_different_medoids():
    chosen = choose_medoids(np.zeros((64, 64)), 4)
    assert len(set(chosen.tolist())) == 4
    assert assign(np.zeros((64, 64)), chosen)[chosen].tolist() == [0, 1, 2, 3]


def test_the_same_seed_gives_the_same_medoids():
    matrix = distances(64)
    np.testing.assert_array_equal(choose_medoids(matrix, 4), choose_medoids(matrix, 4))


@pytest.mark.parametrize(
    ("matrix", "count"), [(np.zeros((3, 2)), 1), (np.zeros((3, 3)), 4), (np.full((2, 2), np.nan), 1)]
)
def test_what_cannot_be_chosen_from_is_refused(matrix, count):
    with pytest.raises(ValueError, match=r"got distances|cannot choose"):
        choose_medoids(matrix, count)
