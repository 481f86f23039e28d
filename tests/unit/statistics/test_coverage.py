"""The promises about chance on experiments whose truth is known; the full grid is benchmarks/statistics/coverage.py."""

import numpy as np
import pytest
from benchmarks.statistics import simulate
from scipy import special

from saccade.statistics import statistic_difference
from saccade.statistics.spread import Spread, fixed_spread, joined_freedom, mean_squares, paired_spread, unpaired_spread

EXPERIMENTS = 2000  # a coverage of 95 % then has a standard error of 0.5 points
NORMAL = [(0.0, 0.0, 0.3), (0.0, 0.3, 0.0), (0.0, 0.3, 0.3), (0.01, 0.2, 0.3), (0.03, 0.2, 0.3), (0.05, 0.0, 0.0)]


def sds(kinds):
    return dict(zip(("seed_sd", "sample_sd", "rest_sd"), kinds, strict=True))


def answers(seeds, samples, rng, *, experiments=EXPERIMENTS, **model):
    """Simulate in parts that fit a cache; return lists of both arms' answers and the truth."""
    size = max(500_000 // (max(seeds) * samples), 1)
    counts = [min(size, experiments - start) for start in range(0, experiments, size)]
    for count in counts:
        a, b, truth = simulate.right_or_wrong(count, seeds, samples, rng=rng, **model)
        yield a.astype(float), b.astype(float), truth


@pytest.mark.parametrize("samples", [200, 1000, 10000])
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("kinds", NORMAL)
def test_interval_over_normal_trainings_and_images_covers_as_promised(kinds, seeds, samples):
    rng = np.random.default_rng(1)
    ms = simulate.normal_mean_squares(20_000, seeds, samples, mean=0.02, rng=rng, **sds(kinds))
    half = paired_spread(ms, seeds=seeds, samples=samples).half_width()
    covered = np.mean(np.abs(ms.mean - 0.02) <= half)
    assert 0.94 < covered < (0.97 if seeds == 3 else 0.96)


@pytest.mark.parametrize(
    ("seeds", "samples", "model"),
    [
        (3, 200, {"accuracy": 0.75, "effect": 0.0, "seed_sd": 0.0, "taste_sd": 0.0}),
        (3, 200, {"accuracy": 0.97, "effect": 0.5, "seed_sd": 0.05, "taste_sd": 1.0}),
        (3, 1000, {"accuracy": 0.75, "effect": 0.3, "seed_sd": 0.1, "taste_sd": 1.0}),
        (3, 1000, {"accuracy": 0.75, "effect": 1.0, "seed_sd": 0.5, "taste_sd": 0.5}),
        (5, 1000, {"accuracy": 0.75, "effect": 0.3, "seed_sd": 0.0, "taste_sd": 1.5}),
        (10, 200, {"accuracy": 0.9, "effect": 0.3, "seed_sd": 0.1, "taste_sd": 0.5}),
    ],
)
def test_interval_over_right_or_wrong_answers_covers_as_promised(seeds, samples, model):
    rng, held = np.random.default_rng(2), []
    for a, b, truth in answers((seeds, seeds), samples, rng, **model):
        ms = mean_squares(b - a)
        held.append(np.abs(ms.mean - truth) <= paired_spread(ms, seeds=seeds, samples=samples).half_width())
    assert 0.93 < np.concatenate(held).mean() < 0.97


def test_drawn_mean_squares_have_the_moments_of_simulated_ones():
    rng = np.random.default_rng(3)
    model = {"mean": 0.0, "seed_sd": 0.3, "sample_sd": 0.5, "rest_sd": 1.0}
    drawn = simulate.normal_mean_squares(20_000, 4, 30, rng=rng, **model)
    direct = mean_squares(simulate.normal_differences(20_000, 4, 30, rng=rng, **model))
    for name in ("seed", "sample", "rest"):
        x, y = getattr(drawn, name), getattr(direct, name)
        assert x.mean() == pytest.approx(y.mean(), rel=0.03)
        assert x.std() == pytest.approx(y.std(), rel=0.06)
    assert drawn.mean.std() == pytest.approx(direct.mean.std(), rel=0.03)


def test_true_difference_of_simulated_answers_is_their_mean():
    model = {"accuracy": 0.8, "effect": 0.5, "seed_sd": 0.3, "taste_sd": 1.0}
    a, b, truth = simulate.right_or_wrong(4000, (2, 2), 200, rng=np.random.default_rng(4), **model)
    assert (b - a).mean() == pytest.approx(truth, abs=0.002)
    assert a.mean() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("kinds", [(0.0, 0.0, 0.3), (0.0, 0.3, 0.3), (0.01, 0.2, 0.3), (0.05, 0.1, 0.2)])
def test_detectable_difference_is_found_four_times_out_of_five(kinds, seeds):
    P, (seed, sample, rest) = 1000, kinds
    fixed = sample**2 / P + rest**2 / seeds / P
    detectable = Spread(seed**2 / seeds + rest**2 / seeds / P, seeds - 1, sample**2 / P, P, fixed).detectable()
    rng = np.random.default_rng(5)
    ms = simulate.normal_mean_squares(20_000, seeds, P, mean=detectable, rng=rng, **sds(kinds))
    found = np.abs(ms.mean) > paired_spread(ms, seeds=seeds, samples=P).half_width()
    assert 0.785 < found.mean() < 0.815


@pytest.mark.parametrize("kinds", [(0.0, 0.0, 0.3), (0.0, 0.3, 0.3), (0.05, 0.1, 0.2)])
def test_reported_detectable_is_right_on_average(kinds):
    S, P, (seed, sample, rest) = 4, 500, kinds
    ms = simulate.normal_mean_squares(600, S, P, mean=0.0, rng=np.random.default_rng(6), **sds(kinds))
    spread = paired_spread(ms, seeds=S, samples=P)
    reported = [
        Spread(spread.seed[i], S - 1, spread.sample[i], float(P), spread.fixed[i]).estimated_detectable()
        for i in range(600)
    ]
    fixed = sample**2 / P + rest**2 / S / P
    truth = Spread(seed**2 / S + rest**2 / S / P, S - 1, sample**2 / P, P, fixed)
    assert 0.77 < truth.power(float(np.mean(reported))) < 0.83


@pytest.mark.parametrize(("seeds", "most"), [((2, 2), 0.03), ((3, 3), 0.04), ((5, 5), 0.05), ((3, 10), 0.055)])
@pytest.mark.parametrize("seed_sd", [0.0, 0.5])
def test_unpaired_recipe_against_itself_raises_few_false_alarms(seeds, most, seed_sd):
    rng, alarms = np.random.default_rng(7), []
    model = {"accuracy": 0.75, "effect": 0.0, "seed_sd": seed_sd, "taste_sd": 0.0}
    for a, b, _ in answers(seeds, 300, rng, **model):
        alarms.append(np.abs(b.mean((1, 2)) - a.mean((1, 2))) > unpaired_spread(a, b).half_width())
    assert 0.002 < np.concatenate(alarms).mean() < most


@pytest.mark.parametrize("share", [0.3, 0.5, 0.77, 0.9])
@pytest.mark.parametrize("freedom", [(2, 2), (2, 9), (9, 2), (4, 4)])
def test_freedom_of_two_joined_variances_is_neither_too_sure_nor_too_timid(freedom, share):
    rng = np.random.default_rng(11)
    first, second = (x * rng.chisquare(n, 40_000) / n for x, n in zip((share, 1 - share), freedom, strict=True))
    half = Spread(first + second, joined_freedom(first, second, *freedom), 0.0, np.inf, 0.0).half_width()
    assert 0.934 < np.mean(np.abs(rng.standard_normal(40_000)) <= half) < 0.97


def test_unpaired_interval_covers_when_images_divide_the_arms():
    rng, held = np.random.default_rng(8), []
    for a, b, truth in answers((4, 6), 300, rng, accuracy=0.75, effect=0.3, seed_sd=0.1, taste_sd=1.5):
        held.append(np.abs(b.mean((1, 2)) - a.mean((1, 2)) - truth) <= unpaired_spread(a, b).half_width())
    assert 0.93 < np.concatenate(held).mean() < 0.97


def test_interval_of_fixed_trainings_covers_their_own_difference_over_images():
    rng = np.random.default_rng(9)
    quality = np.array([0.2, -0.1, 0.05])[:, None]  # the same three trainings in every experiment
    d = quality + rng.standard_normal((EXPERIMENTS, 3, 300)) + rng.standard_normal((EXPERIMENTS, 1, 300))
    ms = mean_squares(d)
    held = np.abs(ms.mean - quality.mean()) <= fixed_spread(ms, seeds=3, samples=300).half_width()
    assert 0.935 < held.mean() < 0.965


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_false_alarms_at_any_level_are_at_most_what_it_says(seeds, share):
    P, rng = 200, np.random.default_rng(12)
    kinds = (np.sqrt(share * seeds), np.sqrt((1 - share) * P), 0.0)  # the mean then has variance 1
    ms = simulate.normal_mean_squares(5000, seeds, P, mean=0.0, rng=rng, **sds(kinds))
    spread = paired_spread(ms, seeds=seeds, samples=P)
    for alpha in (0.2, 0.05, 0.01, 0.0025, 0.0005):
        alarms = 2 * special.ndtr(-spread.half_width(1 - alpha))  # the chance of one, given the spread
        assert alarms.mean() < 1.05 * alpha + 3 * alarms.std() / np.sqrt(5000)


def test_interval_of_few_seeds_is_not_needlessly_wide():
    rng, P = np.random.default_rng(13), 1000
    for seeds, most in ((3, 0.97), (5, 0.96), (10, 0.955)):
        for share in (0.3, 0.5, 0.7):
            kinds = (np.sqrt(share * seeds), np.sqrt((1 - share) * P), 0.0)
            ms = simulate.normal_mean_squares(5000, seeds, P, mean=0.0, rng=rng, **sds(kinds))
            covered = 1 - 2 * special.ndtr(-paired_spread(ms, seeds=seeds, samples=P).half_width())
            assert covered.mean() < most


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_any_false_alarm_among_many_arms_stays_below_the_level(seeds):
    d = simulate.useless_normal_arms(4000, 20, seeds, 30, share=0.9, rng=np.random.default_rng(10))
    alarms = family_alarms(d, (1, 5, 20))
    assert (alarms < 0.06).all()  # three standard errors above 5 % are 6 %
    assert (alarms > 0.02).all()


def test_trainings_that_score_alike_by_rounding_raise_no_alarm_among_many_arms():
    rng = np.random.default_rng(14)
    d = simulate.useless_arms(500, 20, 2, 100, accuracy=0.75, seed_sd=0.5, taste_sd=0.5, rng=rng).astype(float)
    alike = np.ptp(d.mean(-1), axis=-1) < 1e-12
    assert alike.mean() > 0.01  # often enough to matter
    assert (family_alarms(d, (5, 20)) < 0.08).all()  # three standard errors above 5 %


def family_alarms(differences, sizes):
    """Share of experiments in which Holm's first step calls any of so many useless arms different."""
    ms = mean_squares(differences)
    spread = paired_spread(ms, seeds=differences.shape[-2], samples=differences.shape[-1])
    away = np.abs(ms.mean) - 1e-12
    return np.array([(away > spread.half_width(1 - 0.05 / m))[:, :m].any(1).mean() for m in sizes])


@pytest.mark.parametrize("freedom", [(2, 2), (2, 9), (4, 4)])
def test_unpaired_arms_raise_few_false_alarms_at_small_levels(freedom):
    rng = np.random.default_rng(15)
    for share in (0.5, 0.77, 0.95):
        parts = [x * rng.chisquare(n, 20_000) / n for x, n in zip((share, 1 - share), freedom, strict=True)]
        total = parts[0] + parts[1]
        arms = ((parts[0] / total, freedom[0]), (parts[1] / total, freedom[1]))
        spread = Spread(total, joined_freedom(*parts, *freedom), 0.0, np.inf, 0.0, arms)
        for alpha in (0.05, 0.0025):
            alarms = 2 * special.ndtr(-spread.half_width(1 - alpha))
            assert alarms.mean() < 1.05 * alpha + 3 * alarms.std() / np.sqrt(20_000)


@pytest.mark.parametrize(
    ("seeds", "samples", "seed_sd"), [(5, 100, 0.15), pytest.param(5, 150, 0.0, marks=pytest.mark.slow)]
)
def test_interval_of_a_statistic_that_is_no_mean_covers_as_promised(seeds, samples, seed_sd):
    rng, model = np.random.default_rng(16), {"effect": 0.3, "seed_sd": seed_sd, "taste_sd": 0.5}
    truth = simulate.true_difference(simulate.confusions, simulate.mean_iou, rounds=5, **model)
    held, off = [], []
    for _ in range(250):  # one standard error of the coverage is 1.4 points
        found = statistic_difference(
            *simulate.confusions(seeds, samples, rng=rng, **model), simulate.mean_iou, groups=50
        )
        held.append(found.low <= truth <= found.high)
        off.append(found.mean - truth)
    assert 0.92 < np.mean(held) < 0.985
    assert abs(np.mean(off)) < 0.2 * np.std(off)  # what few samples add on average is little beside what they scatter
