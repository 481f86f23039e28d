import numpy as np
import pytest

from saccade.statistics import bootstrap, wilson
from saccade.statistics.bootstrap import estimate, interval, mean_of, record_statistic, resample


def test_interval_of_a_share_is_about_the_normal_one():
    scores = (np.arange(400) % 4 > 0).astype(float)
    drawn = resample(400, {"top1": mean_of(scores)}, seed=1)["top1"]
    found = estimate(scores.mean(), drawn, scores)
    reach = 1.96 * np.sqrt(0.75 * 0.25 / 400)
    assert found.low == pytest.approx(0.75 - reach, abs=0.008)
    assert found.high == pytest.approx(0.75 + reach, abs=0.008)


def test_interval_holds_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(3)
    held = 0
    for trial in range(200):
        scores = (random.random(100) < 0.7).astype(float)
        low, high = interval(resample(100, {"m": mean_of(scores)}, seed=trial, resamples=400)["m"])
        held += low <= 0.7 <= high
    assert 178 <= held <= 198


def test_same_seed_gives_the_same_resamples_whatever_is_asked_and_however_much_fits(monkeypatch):
    scores = np.random.default_rng(0).random(50)
    alone = resample(50, {"m": mean_of(scores)}, seed=4, resamples=300)["m"]
    monkeypatch.setattr(bootstrap, "BLOCK", 50 * 7)
    beside = resample(50, {"n": mean_of(1 - scores), "m": mean_of(scores)}, seed=4, resamples=300)
    assert np.allclose(alone, beside["m"], atol=1e-6)
    assert np.allclose(beside["n"], 1 - beside["m"], atol=1e-6)
    assert not np.allclose(alone, resample(50, {"m": mean_of(scores)}, seed=5, resamples=300)["m"])


def test_paired_difference_is_narrower_than_two_intervals():
    base = np.random.default_rng(0).random(300) < 0.6
    better = base | (np.arange(300) % 10 == 0)
    drawn = resample(300, {"a": mean_of(base), "b": mean_of(better)}, seed=0)
    low, high = interval(drawn["b"] - drawn["a"])
    assert 0 < low < (better.mean() - base.mean()) < high
    assert high - low < np.subtract(*interval(drawn["a"])[::-1])


def test_images_that_all_agree_get_wilsons_interval():
    scores = np.ones(20)
    drawn = resample(20, {"m": mean_of(scores)}, seed=0)["m"]
    found = estimate(1.0, drawn, scores)
    assert (found.low, found.high) == pytest.approx(wilson(20, 20))
    assert found.low < 0.9


def test_equal_resamples_of_few_records_are_computed_once():
    records, asked = np.array([[1.0], [4.0]]), []

    def mean(chosen):
        asked.append(chosen)
        return float(chosen.mean())

    drawn = resample(2, {"m": record_statistic(records, mean)}, seed=1, resamples=400)["m"]
    assert len(asked) == 3
    assert np.array_equal(drawn, resample(2, {"m": mean_of(records[:, 0])}, seed=1, resamples=400)["m"])
