import itertools
import warnings

import numpy as np
import pytest
from benchmarks.statistics import simulate
from scipy import stats

from saccade.statistics import Difference, Spread, paired_difference, paired_scores, unpaired_difference
from saccade.statistics.paired import summarize
from saccade.statistics.spread import mean_squares


def two_arms(seeds=4, samples=300, *, effect=0.5, seed=0):
    rng = np.random.default_rng(seed)
    model = {"accuracy": 0.75, "effect": effect, "seed_sd": 0.1, "taste_sd": 1.0}
    a, b, _ = simulate.right_or_wrong(1, (seeds, seeds), samples, rng=rng, **model)
    return a[0], b[0]


def test_difference_is_the_second_minus_the_first():
    a, b = two_arms()
    result = paired_difference(a, b)
    assert isinstance(result, Difference)
    assert result.mean == pytest.approx(b.mean() - a.mean(), abs=1e-7)
    np.testing.assert_allclose(result.per_seed, b.mean(1) - a.mean(1), atol=1e-6)
    assert (result.n_seeds, result.n_samples) == (4, 300)


def test_exchanging_the_arms_turns_the_sign_and_nothing_else():
    a, b = two_arms()
    forth, back = paired_difference(a, b), paired_difference(b, a)
    assert (back.mean, back.low, back.high) == pytest.approx((-forth.mean, -forth.high, -forth.low))
    assert back.p_value == pytest.approx(forth.p_value)
    assert back.detectable == pytest.approx(forth.detectable)


def test_booleans_integers_and_floats_give_the_same():
    a, b = two_arms()
    expected = paired_difference(a, b)
    for kind in (bool, np.uint8, np.float64):
        assert paired_difference(a.astype(kind), b.astype(kind)).low == expected.low
    assert paired_difference(a.tolist(), b.tolist()).high == expected.high


def test_order_of_seeds_and_images_does_not_matter():
    a, b = two_arms()
    rows, columns = np.random.default_rng(1).permutation(4), np.random.default_rng(2).permutation(300)
    mixed = paired_difference(a[rows][:, columns], b[rows][:, columns])
    expected = paired_difference(a, b)
    assert (mixed.low, mixed.high, mixed.p_value) == pytest.approx((expected.low, expected.high, expected.p_value))


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_identical_arms_differ_by_exactly_nothing_without_a_warning(seeds):
    a, _ = two_arms(seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for result in (
            paired_difference(a, a),
            unpaired_difference(a, a[:, :]),
            paired_difference(a, a, seeds="fixed"),
        ):
            assert (result.mean, result.p_value) == (0, 1)
            assert result.low <= 0 <= result.high
        result = paired_difference(a, a)
    assert (result.low, result.high, result.detectable) == (0, 0, 0)
    assert (result.sign_flip_p, result.mcnemar_p) == (1, 1)
    assert result.verdict.kind == "no difference"


def test_components_equal_the_sums_of_squares_done_the_long_way():
    d = np.random.default_rng(3).standard_normal((3, 7)) + np.arange(3)[:, None]
    S, P, grand = 3, 7, d.mean()
    seed = sum(P * (d[s].mean() - grand) ** 2 for s in range(S)) / (S - 1)
    sample = sum(S * (d[:, p].mean() - grand) ** 2 for p in range(P)) / (P - 1)
    rest = 0.0
    for s, p in itertools.product(range(S), range(P)):
        rest += (d[s, p] - d[s].mean() - d[:, p].mean() + grand) ** 2 / ((S - 1) * (P - 1))
    ms = mean_squares(d)
    assert (ms.mean, ms.seed, ms.sample, ms.rest) == pytest.approx((grand, seed, sample, rest))
    result = paired_difference(np.zeros_like(d), d)
    assert result.seed_se**2 == pytest.approx(seed / (S * P))
    assert result.seed_se == pytest.approx(d.mean(1).std(ddof=1) / np.sqrt(S))
    assert result.sample_se**2 == pytest.approx(max(sample - rest, 0) / (S * P))


def test_interval_is_the_t_interval_where_only_trainings_vary():
    per_seed = np.array([0.01, 0.03, 0.02])
    result = paired_difference(np.zeros((3, 50)), np.repeat(per_seed[:, None], 50, 1))
    test = stats.ttest_1samp(per_seed, 0)
    assert (result.low, result.high) == pytest.approx(tuple(test.confidence_interval()))
    assert result.p_value == pytest.approx(test.pvalue)


def test_interval_is_the_normal_one_where_only_images_vary():
    by_sample = np.random.default_rng(4).standard_normal(5000)
    result = paired_difference(np.zeros((3, 5000)), np.repeat(by_sample[None], 3, 0))
    half = 1.96 * by_sample.std(ddof=1) / np.sqrt(5000)
    assert result.high - result.mean == pytest.approx(half, rel=2e-3)
    assert result.seed_se == 0


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_p_value_is_below_the_threshold_exactly_when_zero_is_outside(level):
    outcomes = set()
    for seed in range(40):
        a, b = two_arms(3, 200, effect=0.5, seed=seed)
        result = paired_difference(a, b, level=level)
        excluded = not result.low <= 0 <= result.high
        assert (result.p_value < 1 - level) == excluded
        outcomes.add(excluded)
        low, high = result.interval(1 - result.p_value)
        assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9)
    assert outcomes == {True, False}


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("seed_df", [1, 2, 7])
def test_p_value_and_interval_agree_where_the_interval_touches_zero(seed_df, level):
    spread = Spread(0.3, seed_df, 0.1, 50.0, 0.2)
    half = float(spread.half_width(level))
    for mean in (np.nextafter(half, 0), half, np.nextafter(half, 1), half + 1e-14, half - 1e-14):
        result = summarize(float(mean), spread, level=level, n_seeds=3, n_samples=9)
        assert (result.p_value < 1 - level) == (result.low > 0)


def test_wins_that_cancel_losses_are_not_called_identical():
    d = np.zeros((2, 200))
    d[0, :2], d[0, 2:4], d[1, 4:6], d[1, 6:8] = 1, -1, 1, -1
    result = paired_difference(np.zeros_like(d), d)
    assert (result.mean, result.p_value) == (0, 1)
    assert result.low < 0 < result.high
    assert result.verdict.kind == "cannot tell"


def test_fixed_trainings_take_one_seed_and_say_so():
    a, b = two_arms(1, 1000)
    result = paired_difference(a, b, seeds="fixed")
    d = b[0] - a[0]
    assert result.high - result.mean == pytest.approx(1.96 * d.std(ddof=1) / np.sqrt(1000), rel=0.01)
    assert result.design == "fixed"
    assert "not for other trainings" in str(result.verdict)


def test_unpaired_arms_may_have_different_numbers_of_seeds():
    a, b = two_arms(6)
    result = unpaired_difference(a, b[:3])
    assert result.mean == pytest.approx(b[:3].mean() - a.mean(), abs=1e-6)
    assert result.n_seeds == 3
    assert result.sign_flip_p is None
    assert result.low < result.mean < result.high


def test_unpaired_freedom_lies_between_the_smaller_arm_and_both_together():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((4, 100)), rng.standard_normal((6, 100))
    assert 3 <= unpaired_difference(a, b).spread.seed_df <= 8
    alike = np.repeat(rng.standard_normal((1, 100)), 4, 0)  # no variance between the first arm's trainings
    assert unpaired_difference(alike, b).spread.seed_df == pytest.approx(5)


def test_options_out_of_range_are_refused():
    a, b = two_arms()
    with pytest.raises(ValueError, match="probability between 0 and 1"):
        paired_difference(a, b, level=95)
    with pytest.raises(ValueError, match=r'"random".*"fixed"'):
        paired_difference(a, b, seeds="few")
    with pytest.raises(ValueError, match="above zero"):
        paired_difference(a, b, margin=0)


def test_constant_difference_of_a_score_is_certain():
    a = np.full((3, 20), 0.7)
    result = paired_difference(a, a + 0.1)
    assert result.p_value == 0
    assert (result.low, result.high) == pytest.approx((0.1, 0.1))


def test_arms_that_only_cancel_out_are_not_called_the_same():
    a = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    result = paired_difference(a, 1 - a)
    assert result.mean == 0
    assert result.low < 0 < result.high
    assert not result.spread.certain


def test_one_number_a_seed_gives_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.random(6), rng.random(6) + 0.3
    result, expected = paired_scores(a, b), stats.ttest_rel(b, a)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert result.p_value == pytest.approx(expected.pvalue)
    assert result.mcnemar_p is None


def test_lower_calibration_error_helps():
    a = np.array([0.10, 0.11, 0.12, 0.10])
    assert paired_scores(a, a - [0.05, 0.052, 0.049, 0.051], larger_is_better=False).verdict.kind == "helps"


def test_undecided_scores_ask_for_seeds():
    verdict = paired_scores([0.4, 0.5, 0.6], [0.45, 0.5, 0.66], margin=0.01).verdict
    assert verdict.kind == "cannot tell"
    assert verdict.more_seeds > 0


def test_scores_that_no_number_of_seeds_settles_say_so():
    verdict = paired_scores([0.0, 0.0, 0.0], [0.5, -0.5, 0.00001]).verdict
    assert verdict.more_seeds is None
    assert "more than 10,000 seeds" in verdict.text


def test_equal_scores_differ_by_nothing():
    result = paired_scores([0.1, 0.7], [0.1, 0.7])
    assert (result.low, result.high, result.p_value) == (0, 0, 1)
