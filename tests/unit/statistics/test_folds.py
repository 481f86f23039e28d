"""Intervals over folds."""

import numpy as np
import pytest

from saccade.statistics import Folds, paired_difference
from saccade.statistics.folds import folded_spread


def simulate(*, seeds, samples=200, folds=5, training=0.0, run=0.0, shared=True, experiments=600, seed=0):
    """Return how often intervals hold zero where samples act on their own test and, by `training`, on all trainings."""
    draws = np.random.default_rng(seed)
    fold = np.arange(samples) % folds
    held = []
    for _ in range(experiments):
        own = draws.normal(0, 1, samples)
        teach = draws.normal(0, training, samples)
        taught = np.array([teach[fold != k].mean() for k in range(folds)])[fold]
        luck = draws.normal(0, run, (seeds, folds))[:, fold]
        values = own + taught + luck + draws.normal(0, 1, (seeds, samples))
        spread = folded_spread(values, Folds(folds, fold, shared=None if shared else 0.0))
        held.append(abs(values.mean()) <= spread.half_width(0.95))
    return np.mean(held)


@pytest.mark.parametrize(("seeds", "run"), [(1, 0.0), (3, 0.0), (3, 0.2), (2, 0.5)])
def test_intervals_hold_the_truth_as_often_as_they_say(seeds, run):
    assert 0.93 <= simulate(seeds=seeds, run=run, training=0.3) <= 0.985


def test_what_trainings_do_is_seen_between_folds_where_each_has_one():
    assert 0.91 <= simulate(seeds=1, run=0.5) <= 0.985


def test_one_pass_of_several_cuts_that_ended_has_an_interval():
    values = np.random.default_rng(0).normal(0, 1, (1, 100))
    assert np.isfinite(folded_spread(values, Folds(5, None)).half_width(0.95))


def test_results_of_several_seeds_are_not_taken_for_so_many_samples():
    draws = np.random.default_rng(0)
    fold = np.arange(100) % 5
    once = draws.normal(0, 1, (1, 100))
    one = folded_spread(once, Folds(5, fold)).half_width(0.95)
    many = folded_spread(np.repeat(once, 8, axis=0), Folds(5, fold)).half_width(0.95)
    assert many == pytest.approx(one, rel=0.15)


def test_groups_that_vary_as_one_widen_the_interval():
    draws = np.random.default_rng(0)
    clusters, fold = np.repeat(np.arange(20), 10), np.repeat(np.arange(20), 10) % 5
    values = draws.normal(0, 1, 20)[clusters] + draws.normal(0, 0.3, (2, 200))
    alone = folded_spread(values, Folds(5, fold)).half_width(0.95)
    whole = folded_spread(values, Folds(5, fold, clusters)).half_width(0.95)
    assert whole > 2.5 * alone


def test_a_single_seed_is_enough_over_folds_and_not_without():
    draws = np.random.default_rng(1)
    a, b = draws.integers(0, 2, (2, 1, 50)).astype(float)
    assert paired_difference(a, b, folds=Folds(5, np.arange(50) % 5)).n_seeds == 1
    with pytest.raises(ValueError, match=r"1 seed\(s\) were given"):
        paired_difference(a, b)
