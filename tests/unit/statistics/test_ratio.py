import numpy as np
import pytest
from scipy import stats

from saccade.statistics import ratio_interval


def test_ratio_is_the_t_interval_of_logs_second_over_first():
    rng = np.random.default_rng(1)
    a = np.exp(rng.normal(0, 0.1, 8))
    b = 1.3 * a * np.exp(rng.normal(0, 0.02, 8))
    result, expected = ratio_interval(a, b), stats.ttest_1samp(np.log(b / a), 0)
    assert result.low < 1.3 < result.high
    assert (result.low, result.high) == pytest.approx(tuple(np.exp(expected.confidence_interval())))
    assert result.p_value == pytest.approx(expected.pvalue)
    assert ratio_interval(b, a).ratio == pytest.approx(1 / result.ratio)
    assert ratio_interval(1000 * a, 1000 * b).high == pytest.approx(result.high)


def test_ratio_of_equal_costs_is_one():
    result = ratio_interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (result.ratio, result.low, result.high, result.p_value) == (1, 1, 1, 1)


def test_costs_of_zero_are_refused():
    with pytest.raises(ValueError, match="above zero"):
        ratio_interval([1.0, 0.0], [1.0, 1.0])
