import itertools
import warnings

import numpy as np
import pytest
from benchmarks import simulate
from scipy import stats

from saccade.comparison import Difference, paired_difference
from saccade.comparison.paired import summarize, unpaired_difference
from saccade.comparison.spread import Spread, mean_squares, paired_spread


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


def test_interval_is_never_much_narrower_than_that_of_fixed_trainings():
    # Both seeds agree by luck although they differ on images: nothing is known to be certain.
    d = np.zeros((2, 200))
    d[0, :2] = d[1, 2:4] = 0.5
    ms = mean_squares(d)
    assert ms.seed == 0
    spread = paired_spread(ms, seeds=2, samples=200)
    assert spread.half_width() >= 0.97 * np.sqrt(ms.sample / 400)
    result = paired_difference(np.zeros_like(d), d)
    assert (result.p_value < 0.05) == (result.low > 0)
    assert result.p_value > 0
    assert result.detectable > 0


def test_answers_that_score_alike_in_every_seed_leave_the_rounding_of_their_mean():
    d = np.zeros((2, 100))
    d[0, :4] = d[1, 4:8] = 1  # both seeds gain 4 points, on different images
    assert mean_squares(d).seed == pytest.approx(1 / 1200)
    assert paired_difference(np.zeros_like(d), d).p_value > 0.01
    same = np.repeat(d[:1], 2, 0)  # the same answers are no luck of rounding
    assert mean_squares(same).seed == 0


@pytest.mark.parametrize("seed_df", [1, 2, 9])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 1.0])
def test_interval_widens_with_the_level_and_holds_each_source_alone(seed_df, share):
    spread = Spread(share, seed_df, 1 - share, 80.0, 0.0)
    widths = [float(spread.half_width(1 - alpha)) for alpha in (0.5, 0.1, 0.05, 0.01, 1e-4, 1e-8)]
    assert widths == sorted(widths)
    trainings, samples = Spread(share, seed_df, 0.0, 80.0, 0.0), Spread(0.0, seed_df, 1 - share, 80.0, 0.0)
    alone = max(float(trainings.half_width()), float(samples.half_width()))
    together = float(np.hypot(trainings.half_width(), samples.half_width()))
    assert alone <= widths[2] * 1.001
    assert widths[2] <= together * (1 + 1e-12)


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
    assert "not of other trainings" in str(result.verdict)


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


@pytest.mark.parametrize("bad", ["one seed", "pictures", "seeds", "nan", "flat", "text", "one image"])
def test_what_cannot_be_compared_is_refused_with_advice(bad):
    a, b = (x.astype(float) for x in two_arms())
    hole = b.copy()
    hole[0, 0] = np.nan
    given, error, message = {
        "one seed": (
            (a[:1], b[:1]),
            ValueError,
            'at least 2.*nothing can be said about other trainings.*seeds="fixed"',
        ),
        "pictures": ((a, b[:, :-1]), ValueError, "300 samples, b has 299.*same samples"),
        "seeds": ((a, b[:-1]), ValueError, "4 seeds, b has 3.*unpaired_difference"),
        "nan": ((a, hole), ValueError, "1 value.*NaN.*of 1200.*leave that seed out"),
        "flat": ((a[0], b[0]), ValueError, "seeds x samples.*paired_scores"),
        "text": ((a.astype(str), b), TypeError, "booleans or numbers"),
        "one image": ((a[:, :1], b[:, :1]), ValueError, "1 samples.*at least 2"),
    }[bad]
    with pytest.raises(error, match=message):
        paired_difference(*given)


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
