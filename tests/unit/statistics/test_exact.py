import itertools

import numpy as np
import pytest
from scipy import stats

from saccade.statistics import mcnemar, sign_flip
from saccade.statistics.exact import mcnemar_counts


def test_sign_flip_counts_all_patterns():
    values = np.array([0.4, -0.1, 0.3, 0.2])
    patterns = [abs(np.dot(s, values)) for s in itertools.product((1, -1), repeat=4)]
    expected = np.mean([x >= abs(values.sum()) - 1e-12 for x in patterns])
    assert sign_flip(values) == pytest.approx(expected) == 0.25


@pytest.mark.parametrize("seeds", [2, 5, 6, 10])
def test_smallest_sign_flip_p_is_two_in_all_patterns(seeds):
    assert sign_flip(np.linspace(0.1, 0.3, seeds)) == pytest.approx(2 / 2**seeds)


def test_equal_seeds_are_not_lost_to_rounding():
    assert sign_flip([0.1, 0.2, 0.3, 0.1 + 0.2]) == pytest.approx(2 / 16)
    assert sign_flip([0.1] * 12) == pytest.approx(2 / 2**12)
    assert sign_flip([0.0, 0.0, 0.0]) == 1


def test_many_seeds_are_flipped_at_random_and_repeatably():
    values = np.random.default_rng(0).standard_normal(20) + 0.4
    drawn = sign_flip(values)
    assert drawn == sign_flip(values)
    assert drawn != sign_flip(values, seed=1)
    signs = np.array(list(itertools.product((1, -1), repeat=16)))
    exact = np.mean(np.abs(signs @ values[:16]) >= abs(values[:16].sum()) - 1e-12)
    assert sign_flip(values[:16]) == pytest.approx(exact)
    assert drawn == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)
    assert sign_flip(np.ones(40)) == pytest.approx(1 / 100_001)


@pytest.mark.parametrize(("wins", "losses"), [(0, 1), (9, 1), (15, 15), (30, 12), (400, 330)])
def test_mcnemar_is_the_binomial_test_of_discordant_images(wins, losses):
    differences = np.concatenate([np.ones(wins), -np.ones(losses), np.zeros(50)])
    assert mcnemar(differences) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)


def test_an_image_counts_once_however_many_seeds():
    differences = np.concatenate([np.ones(9), -np.ones(2), np.zeros(5)])
    assert mcnemar(np.repeat(differences[None], 8, 0)) == pytest.approx(mcnemar(differences))
    third = np.array([[1, 1, 0], [-1, 1, 0], [0, -1, 0]])  # images: even, for b, neither
    assert mcnemar(third) == 1


def test_mcnemar_without_discordant_images_is_one():
    assert mcnemar(np.zeros((3, 10))) == 1


def test_mcnemar_counts_images_right_for_one_alone():
    ours, theirs = np.array([1, 1, 1, 1, 1, 0, 1]), np.array([0, 0, 0, 0, 0, 1, 1])
    p_value, gained, lost = mcnemar_counts(ours, theirs)
    assert (gained, lost) == (5, 1)
    assert p_value == pytest.approx(2 * (1 + 6) / 64)  # both tails of a fair coin thrown six times
    assert mcnemar_counts(ours, ours) == (1.0, 0, 0)
