import numpy as np
import pytest

from saccade.statistics import Spread, paired_difference, plan_detectable


def result(seeds=5, samples=2000, *, seed_sd=0.02, sample_sd=0.1, seed=0):
    rng = np.random.default_rng(seed)
    d = rng.standard_normal((seeds, samples)) * 0.3 + rng.standard_normal(samples) * sample_sd
    return paired_difference(np.zeros_like(d), d + seed_sd * rng.standard_normal((seeds, 1)))


def test_seeds_needed_for_the_detectable_difference_are_those_at_hand():
    for seed in range(5):
        x = result(seed=seed)
        assert x.seeds_needed(x.detectable * 1.0001) == 5
        assert x.seeds_needed(x.detectable * 0.98) > 5


def test_smaller_differences_need_more_seeds_until_images_are_too_few():
    x = result()
    wanted = [x.seeds_needed(d) for d in (0.1, 0.03, 0.02)]
    assert wanted == sorted(wanted)
    assert len(set(wanted)) == 3
    assert x.seeds_needed(0.001) is None
    assert x.seeds_needed(-0.03) == wanted[1]


def test_stricter_level_and_more_power_need_more_seeds():
    x = result()
    assert x.seeds_needed(0.03) < x.seeds_needed(0.03, level=0.99)
    assert x.seeds_needed(0.03) < x.seeds_needed(0.03, power=0.95)


def test_needed_seeds_find_the_difference():
    truth = Spread(0.01**2 / 4, 3, 0.005**2, 1e4, 0.006**2)
    planned = next(n for n in range(2, 100) if truth.with_seeds(n, now=4).detectable() <= 0.02)
    assert truth.with_seeds(planned, now=4).power(0.02) >= 0.8 > truth.with_seeds(planned - 1, now=4).power(0.02)


def test_asking_for_nothing_or_from_fixed_trainings_is_refused():
    with pytest.raises(ValueError, match="give its size"):
        result().seeds_needed(0)
    a = np.random.default_rng(0).random((1, 50)) < 0.5
    with pytest.raises(ValueError, match="at least 2 seeds"):
        paired_difference(a, ~a, seeds="fixed").seeds_needed(0.01)


def test_plan_agrees_with_the_spread_it_assumes():
    S, P, variance = 5, 2000, 0.8 * 0.2
    rest, sample = 0.75 * variance / S / P, 0.25 * variance / P
    expected = Spread(0.005**2 / S + rest, S - 1, sample, 2 * P * variance, sample + rest).detectable()
    assert plan_detectable(S, P, 0.8) == pytest.approx(expected)
    assert plan_detectable(S, P, 0.8, disagreement=variance) == pytest.approx(expected)


def test_plan_improves_with_seeds_images_and_agreement():
    base = plan_detectable(5, 1000, 0.8)
    assert plan_detectable(10, 1000, 0.8) < base
    assert plan_detectable(5, 10000, 0.8) < base
    assert plan_detectable(5, 1000, 0.95) < base
    assert plan_detectable(5, 1000, 0.8, seed_sd=0.02) > base


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 1}, "at least 2"),
        ({"accuracy": 80}, "between 0 and 1"),
        ({"disagreement": 0.0}, "disagreement above 0"),
        ({"seed_sd": -1.0}, "not be negative"),
        ({"power": 0.01}, "power above 1 - level"),
    ],
)
def test_impossible_plans_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        plan_detectable(**{"seeds": 5, "samples": 100, "accuracy": 0.8, **given})
