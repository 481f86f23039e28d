import pytest
from scipy.stats import binomtest

from saccade.statistics import wilson


@pytest.mark.parametrize(("correct", "count"), [(0, 10), (10, 10), (241, 1000), (1, 3), (7123, 10000)])
def test_wilson_interval_is_that_of_scipy(correct, count):
    expected = binomtest(correct, count).proportion_ci(method="wilson")
    assert wilson(correct, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_nothing_is_everything_and_impossible_counts_are_refused():
    assert wilson(0, 0) == (0, 1)
    with pytest.raises(ValueError, match="5 right predictions of 3"):
        wilson(5, 3)
