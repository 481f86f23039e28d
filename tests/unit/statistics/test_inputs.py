import numpy as np
import pytest

from saccade.statistics import paired_difference, paired_scores, ratio_interval


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


@pytest.mark.parametrize("bad", ["one seed", "pictures", "seeds", "nan", "flat", "text", "one image"])
def test_what_cannot_be_compared_is_refused_with_advice(bad):
    rng = np.random.default_rng(0)
    a, b = rng.random((4, 300)), rng.random((4, 300))
    hole = b.copy()
    hole[0, 0] = np.nan
    given, error, message = {
        "one seed": (
            (a[:1], b[:1]),
            ValueError,
            'at least 2.*says nothing about other trainings.*seeds="fixed"',
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
