import numpy as np
import pytest
from scipy import stats

from saccade.statistics import paired_difference
from saccade.statistics.spread import Spread, mean_squares, paired_spread


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


def test_power_is_that_of_the_t_test_where_only_seeds_vary():
    spread = Spread(1.0, 4, 0.0, np.inf, 0.0)
    bar = stats.t.isf(0.025, 4)
    for difference in (0.0, 1.0, 3.0):
        expected = stats.nct.sf(bar, 4, difference) + stats.nct.cdf(-bar, 4, difference)
        assert spread.power(difference) == pytest.approx(expected, abs=2e-3)
    assert spread.power(spread.detectable()) == pytest.approx(0.8, abs=1e-6)


def test_detectable_is_the_textbook_number_where_only_images_vary():
    assert Spread(0.0, np.inf, 1.0, np.inf, 1.0).detectable() == pytest.approx(1.96 + 0.8416, abs=1e-3)


def test_interval_holds_what_neither_seeds_nor_samples_explain():
    d = 0.3 * (-1.0) ** np.add.outer(np.arange(2), np.arange(200))  # all seeds and all samples have the same mean
    ms = mean_squares(d)
    assert ms.seed == ms.sample == 0
    spread = paired_spread(ms, seeds=2, samples=200)
    assert spread.fixed == pytest.approx(ms.rest / 400)
    assert spread.half_width() == pytest.approx(1.96 * np.sqrt(ms.rest / 400) / 2, rel=1e-4)
