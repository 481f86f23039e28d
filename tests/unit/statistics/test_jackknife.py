import numpy as np
import pytest

from saccade.statistics import macro_difference, paired_difference, statistic_difference, unpaired_difference


def arms(experiments, rng, *, seeds=4, shares=(0.6, 0.3, 0.1), samples=300):
    """Three classes of unequal size; the second arm gains 0, 0.1 and 0.2 on them, 0.1 by the macro mean."""
    labels = rng.choice(3, samples, p=shares)
    labels[:6] = [0, 1, 2, 0, 1, 2]
    easy = rng.random((experiments, 1, samples)) * 0.2
    quality = 0.03 * rng.standard_normal((experiments, seeds, 1))
    a = rng.random((experiments, seeds, samples)) < 0.6 + easy
    b = rng.random((experiments, seeds, samples)) < 0.6 + easy + quality + np.array([0, 0.1, 0.2])[labels]
    return a.astype(float), b.astype(float), labels


def macro(scores, labels):
    return np.mean([scores[labels == c].mean() for c in np.unique(labels)])


def test_left_out_groups_agree_with_the_formula_for_the_macro_mean():
    a, b, labels = arms(1, np.random.default_rng(3), samples=1000)
    records = [[np.stack([row, labels], 1) for row in arm[0]] for arm in (a, b)]
    result = statistic_difference(*records, lambda x: macro(x[:, 0], x[:, 1]), groups=1000)
    expected = macro_difference(a[0], b[0], labels)
    assert result.mean == pytest.approx(expected.mean)
    assert result.spread.seed == pytest.approx(expected.spread.seed)
    assert result.spread.fixed == pytest.approx(expected.spread.fixed, rel=0.02)
    assert result.n_samples == 1000


def test_left_out_single_images_of_a_mean_give_the_plain_result():
    rng = np.random.default_rng(4)
    a, b = rng.random((3, 60)), rng.random((3, 60)) + 0.1
    result, plain = statistic_difference(a, b, np.mean, groups=60), paired_difference(a, b)
    assert (result.mean, result.low, result.p_value) == pytest.approx((plain.mean, plain.low, plain.p_value))


def test_unmatched_records_are_refused():
    a = np.zeros((3, 10))
    with pytest.raises(ValueError, match="same seeds"):
        statistic_difference(a, a[:2], np.mean)
    with pytest.raises(ValueError, match="at least 2, and about 100"):
        statistic_difference(a, a, np.mean, groups=1)


def test_statistics_of_fixed_and_of_unpaired_seeds_are_those_of_plain_scores():
    rng = np.random.default_rng(6)
    a, b, labels = rng.random((3, 60)), rng.random((4, 60)) + 0.1, np.arange(60) % 2
    alone, plain = statistic_difference(a, b, np.mean, groups=60, paired=False), unpaired_difference(a, b)
    assert (alone.design, alone.mean, alone.low) == ("unpaired", pytest.approx(plain.mean), pytest.approx(plain.low))
    these, plain = (
        statistic_difference(a[:1], b[:1], np.mean, groups=60, seeds="fixed"),
        paired_difference(a[:1], b[:1], seeds="fixed"),
    )
    assert (these.design, these.mean, these.low) == ("fixed", pytest.approx(plain.mean), pytest.approx(plain.low))
    by_class = macro_difference(a, b, labels, paired=False)
    assert (by_class.design, by_class.mean) == ("unpaired", pytest.approx(b.mean() - a.mean()))
    assert macro_difference(a[:1], b[:1], labels, seeds="fixed").design == "fixed"


def test_a_statistic_is_told_as_its_metric_is():
    a, b = np.zeros((3, 20)), np.random.default_rng(7).random((3, 20))
    assert statistic_difference(a, b, np.mean, share=True).share
    assert statistic_difference(a, b, np.mean, unit="years").unit == "years"
    assert not statistic_difference(a, b, np.mean).share
