import numpy as np
import pytest
from scipy import stats

from saccade.comparison.paired import paired_scores, ratio_interval


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


@pytest.mark.parametrize("function", [paired_scores, ratio_interval])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0], [2.0], "at least 2"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], "same"),
        ([1.0, np.inf], [1.0, 2.0], "infinite"),
    ],
)
def test_too_few_or_unmatched_numbers_are_refused(function, a, b, message):
    with pytest.raises(ValueError, match=message):
        function(a, b)


def test_costs_of_zero_are_refused():
    with pytest.raises(ValueError, match="above zero"):
        ratio_interval([1.0, 0.0], [1.0, 1.0])
