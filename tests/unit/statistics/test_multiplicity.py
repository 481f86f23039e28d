import numpy as np
import pytest
from benchmarks.statistics import simulate

from saccade.statistics import alpha_share, holm, judge, paired_difference
from saccade.statistics.multiplicity import holm_levels
from saccade.statistics.spread import mean_squares, paired_spread


def arms(effect, *, seeds=6, samples=2000, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    a = np.zeros((seeds, samples))
    return a, a + effect + noise * rng.standard_normal((seeds, samples)) + 0.004 * rng.standard_normal((seeds, 1))


def better(seeds, *, by=0.1):
    rng = np.random.default_rng(0)
    a = rng.random((seeds, 2000)) < 0.7
    return paired_difference(a, a | (rng.random((seeds, 2000)) < by / 0.3))


def test_verdict_among_several_arms_is_by_holm():
    results = {f"arm {i}": paired_difference(*arms(0.009, seeds=5, seed=i)) for i in range(12)}
    judged = judge(results)
    corrected = holm([x.p_value for x in results.values()])
    alone = [x.verdict.kind == "helps" for x in results.values()]
    together = [x.verdict.kind == "helps" for x in judged.values()]
    assert together == list(corrected < 0.05)
    assert sum(together) < sum(alone)
    for x, p in zip(judged.values(), corrected, strict=True):
        assert x.p_holm == p
        assert (x.low > 0 or x.high < 0) == (p < 0.05)
        assert x.joint_low <= x.low <= x.difference.low


def test_no_difference_among_several_arms_needs_the_joint_interval():
    first = paired_difference(*arms(0.0, seed=3))
    margin = max(-first.low, first.high) * 1.01
    assert judge({"a": first}, margin=margin)["a"].verdict.kind == "no difference"
    many = judge({"a": first, **{str(i): first for i in range(5)}}, margin=margin)
    assert many["a"].verdict.kind == "cannot tell"


def test_arms_at_different_levels_are_refused():
    a, b = arms(0.0)
    with pytest.raises(ValueError, match="one level"):
        judge({"x": paired_difference(a, b), "y": paired_difference(a, b, level=0.9)})
    with pytest.raises(ValueError, match="at least one arm"):
        judge({})


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1, 1])
    np.testing.assert_allclose(holm([0.02]), [0.02])


def test_holm_levels_exclude_zero_where_holm_rejects():
    rng = np.random.default_rng(1)
    for _ in range(200):
        p = rng.random(4) ** 3
        np.testing.assert_array_equal(holm(p) < 0.05, p < 1 - holm_levels(p))


def test_holm_levels_by_hand():
    np.testing.assert_allclose(1 - holm_levels([0.001, 0.3, 0.02]), [0.05 / 3, 0.05, 0.05 / 2])
    np.testing.assert_allclose(1 - holm_levels([0.001, 0.3, 0.03]), [0.05 / 3, 0.05 / 2, 0.05 / 2])


@pytest.mark.parametrize("bad", [[0.1, 1.2], [np.nan], [[0.1]]])
def test_holm_refuses_what_is_no_p_value(bad):
    with pytest.raises(ValueError, match="from 0 to 1"):
        holm(bad)


def test_all_looks_together_spend_the_chance_of_a_false_alarm_once():
    assert sum(alpha_share(look) for look in range(1, 5000)) == pytest.approx(1, abs=1e-3)
    assert alpha_share(1) > alpha_share(2) > alpha_share(3)
    assert alpha_share(0) == 1


def test_a_later_look_is_judged_by_a_wider_interval():
    d = better(4, by=0.02)
    once, first, second = (judge({"arm": d}, look=look)["arm"] for look in (0, 1, 2))
    assert second.low < first.low < once.low == d.low
    assert once.p_holm < first.p_holm < second.p_holm
    assert first.low == d.interval(1 - 0.05 * alpha_share(1))[0]
    for one in (once, first, second):
        assert (one.low > 0 or one.high < 0) == (one.p_holm < 0.05)


@pytest.mark.parametrize("sds", [(0.05, 0.0, 0.0), (0.01, 0.2, 0.3)])
def test_looking_after_every_seed_and_stopping_when_it_is_significant_keeps_the_promise(sds):
    model = dict(zip(("seed_sd", "sample_sd", "rest_sd"), sds, strict=True))
    d = simulate.normal_differences(1000, 12, 60, mean=0.0, rng=np.random.default_rng(1), **model)
    plain, ours = np.zeros(1000, bool), np.zeros(1000, bool)
    for look, count in enumerate(range(2, 13), 1):
        ms = mean_squares(d[:, :count])
        spread = paired_spread(ms, seeds=count, samples=60)
        plain |= np.abs(ms.mean) > spread.half_width()
        ours |= np.abs(ms.mean) > spread.half_width(1 - 0.05 * alpha_share(look))
    assert ours.mean() < 0.06
    assert plain.mean() > 0.1
