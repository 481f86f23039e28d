import numpy as np

from saccade.statistics import paired_difference, paired_scores


def arms(effect, *, seeds=6, samples=2000, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    a = np.zeros((seeds, samples))
    return a, a + effect + noise * rng.standard_normal((seeds, samples)) + 0.004 * rng.standard_normal((seeds, 1))


def test_a_clear_gain_helps_and_a_clear_loss_hurts():
    assert paired_difference(*arms(0.05)).verdict.kind == "helps"
    assert paired_difference(*arms(-0.05)).verdict.kind == "hurts"


def test_smaller_is_better_turns_the_verdict_and_not_the_sign():
    result = paired_difference(*arms(0.05), larger_is_better=False)
    assert result.verdict.kind == "hurts"
    assert result.mean > 0
    assert paired_difference(*arms(-0.05), larger_is_better=False).verdict.kind == "helps"


def test_interval_within_the_margin_is_no_difference():
    verdict = paired_difference(*arms(0.0), margin=0.03).verdict
    assert verdict.kind == "no difference"
    assert "no difference above 0.03" in verdict.text


def test_nothing_is_called_no_difference_without_a_margin():
    verdict = paired_difference(*arms(0.0)).verdict
    assert verdict.kind == "cannot tell"
    assert "the observed difference" in verdict.text


def test_undecided_says_how_many_more_seeds():
    result = paired_difference(*arms(0.0, seeds=3, seed=1), margin=0.012)
    assert result.verdict.kind == "cannot tell"
    assert result.verdict.more_seeds == result.seeds_needed(0.012) - 3 > 0
    assert f"run {result.verdict.more_seeds} more seed" in result.verdict.text


def test_a_difference_that_nobody_would_wait_for_asks_for_a_margin():
    rng = np.random.default_rng(0)
    d = 0.01 * rng.standard_normal((5, 1)) + 0.01 * rng.standard_normal((5, 2000))
    verdict = paired_difference(np.zeros_like(d), d - d.mean() + 0.0008).verdict
    assert verdict.more_seeds is not None
    assert verdict.more_seeds > 100
    assert f"would take {verdict.more_seeds:,} more seeds" in verdict.text
    assert "give a margin" in verdict.text


def test_undecided_for_want_of_images_asks_for_images():
    rng = np.random.default_rng(0)
    d = rng.standard_normal((1, 100)) + 0.01 * rng.standard_normal((5, 100))
    verdict = paired_difference(np.zeros_like(d), d - d.mean() + 0.01, margin=0.05).verdict
    assert verdict.kind == "cannot tell"
    assert verdict.more_seeds is None
    assert "more seeds will not" in verdict.text
    assert "samples" in verdict.text


def test_differences_of_right_and_wrong_are_told_in_points():
    rng = np.random.default_rng(0)
    a, b = rng.random((5, 1000)) < 0.7, rng.random((5, 1000)) < 0.8
    assert f"{100 * paired_difference(a, b).mean:+.2f} [" in str(paired_difference(a, b))


def test_small_but_certain_gain_says_that_it_is_small():
    verdict = paired_difference(*arms(0.02), margin=0.05).verdict
    assert verdict.kind == "helps"
    assert "by less than 0.05" in verdict.text


def test_shares_are_told_in_points_and_other_scores_in_their_unit():
    a, b = arms(0.05)
    shares = paired_difference(a, b, share=True)
    assert not shares.right_or_wrong
    assert f"{100 * shares.mean:+.2f} [" in str(shares)
    years = paired_difference(a, b, larger_is_better=False, unit="years", margin=0.2)
    assert (years.share, years.verdict.kind) == (False, "hurts")
    assert "by less than 0.2 years: " in str(years)
    assert "] years, p = " in str(years)
    assert paired_difference(a > 0, b > 0).share
    assert not paired_difference(a > 0, b > 0, share=False).share


def test_arms_that_are_right_on_the_very_same_few_samples_are_not_called_equal():
    few, many = (np.tile((np.arange(count) % 8 == 0).astype(float), (3, 1)) for count in (64, 6400))
    verdict = paired_difference(few, few, margin=0.01).verdict
    assert verdict.kind == "cannot tell"
    assert "exactly the same 64 samples, which may hide a difference of up to 4.69 points" in verdict.text
    assert paired_difference(many, many, margin=0.01).verdict.kind == "no difference"


def test_a_verdict_over_seeds_alone_says_that_it_is_of_these_very_images():
    a, b = [0.5, 0.51, 0.52], [0.6, 0.612, 0.62]
    assert paired_scores(a, b).verdict.text.endswith(
        "this holds over seeds on these samples only, not for other samples"
    )
    own = paired_scores(a, b, samples_fixed=False)  # every seed has images of its own
    assert "these samples only" not in own.verdict.text
