import numpy as np
import pytest

from saccade.statistics import macro_difference, paired_difference


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


def test_macro_difference_is_the_mean_over_classes():
    a, b, labels = arms(1, np.random.default_rng(0))
    result = macro_difference(a[0], b[0], labels)
    per_seed = [macro(y, labels) - macro(x, labels) for x, y in zip(a[0], b[0], strict=True)]
    np.testing.assert_allclose(result.per_seed, per_seed)
    assert result.mean == pytest.approx(np.mean(per_seed))


def test_macro_interval_covers_as_promised():
    rng, held = np.random.default_rng(1), []
    for _ in range(500):
        a, b, labels = arms(1, rng)
        result = macro_difference(a[0], b[0], labels)
        held.append(result.low <= 0.1 <= result.high)
    assert 0.925 < np.mean(held) < 0.975


def test_equal_classes_give_the_plain_difference():
    rng = np.random.default_rng(2)
    labels = np.arange(300) % 3
    a, b = rng.random((4, 300)) < 0.6, rng.random((4, 300)) < 0.7
    plain, by_class = paired_difference(a, b), macro_difference(a, b, labels)
    assert by_class.mean == pytest.approx(plain.mean)
    assert by_class.high == pytest.approx(plain.high, rel=0.05)


def test_classes_of_one_image_and_wrong_labels_are_refused():
    a, b, labels = arms(1, np.random.default_rng(5))
    with pytest.raises(ValueError, match="one class per sample"):
        macro_difference(a[0], b[0], labels[:-1])
    lonely = labels.copy()
    lonely[0] = 7
    with pytest.raises(ValueError, match="only one sample has the class 7"):
        macro_difference(a[0], b[0], lonely)
