import numpy as np

from saccade.training.trial import Trial
from saccade.tuning.choice import ALARM, choose
from saccade.tuning.search import Attempt

NAMES = ["base", "other"]


def attempts(scores, rung=0):
    """Trials of candidates x arms."""
    return [
        Attempt(name, number, {"optim.lr": number}, rung, 3, Trial(None if np.isnan(score) else float(score)))
        for number, row in enumerate(scores)
        for name, score in zip(NAMES, row, strict=True)
    ]


def test_arms_share_what_is_best_on_average_though_each_has_another_best():
    scores = np.array([[0.60, 0.61], [0.702, 0.698], [0.699, 0.703], [0.62, 0.61], [0.5, 0.5], [0.4, 0.41]])
    found = choose(attempts(scores), NAMES, larger=True)
    assert found.values["base"] == found.values["other"] == {"optim.lr": 2}
    assert found.own == ()


def test_an_arm_gets_its_own_where_it_gains_beyond_the_noise():
    rng = np.random.default_rng(0)
    curve = np.array([0.5, 0.6, 0.65, 0.7, 0.72, 0.7, 0.6, 0.5])
    scores = np.stack([curve, curve], 1) + 0.002 * rng.standard_normal((8, 2))
    scores[0, 1] = 0.95
    found = choose(attempts(scores), NAMES, larger=True)
    assert found.values["other"] == {"optim.lr": 0}


def test_lower_is_better_where_the_metric_says_so():
    found = choose(attempts(np.array([[3.0, 3.1], [1.0, 1.1], [2.0, 2.0]])), NAMES, larger=False)
    assert found.values["base"] == {"optim.lr": 1}


def test_a_candidate_that_failed_in_one_arm_is_no_arms_choice():
    scores = np.array([[0.9, np.nan], [0.5, 0.5], [0.6, 0.55]])
    assert choose(attempts(scores), NAMES, larger=True).values["base"] == {"optim.lr": 2}
    assert choose(attempts(np.array([[0.9, np.nan]])), NAMES, larger=True) is None


def test_the_longest_round_decides():
    first, last = np.array([[0.5, 0.5], [0.6, 0.6]]), np.array([[0.8, 0.8], [0.7, 0.7]])
    assert choose([*attempts(first), *attempts(last, 1)], NAMES, larger=True).values["base"] == {"optim.lr": 0}


def test_arms_that_are_the_same_get_other_settings_no_more_often_than_promised():
    rng, different, rounds = np.random.default_rng(1), 0, 1500
    for _ in range(rounds):
        curve = 0.7 - 0.01 * (np.arange(6) - rng.uniform(0, 5)) ** 2
        found = choose(attempts(curve[:, None] + 0.02 * rng.standard_normal((6, 2))), NAMES, larger=True)
        different += found.values["base"] != found.values["other"]
    assert different / rounds <= ALARM
