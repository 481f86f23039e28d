import pytest

from saccade.comparison.plan.budget import BudgetRequest, fit_budget, makespan
from saccade.support.durations import BudgetError, parse_duration, say_duration
from saccade.training.pace import Pace

PACE = Pace(startup=2.0, step=0.1, validation=1.0, steps=10)  # 2 + epochs * (1 + 1) + 1 seconds a run


def fit(budget, *, seeds=10, named=False, epochs=40, arms=2, slots=1, folds=1, spent=0.0):
    names = [f"arm{number}" for number in range(arms)]
    asked = BudgetRequest(budget, seeds, named, slots=slots, folds=folds)
    return fit_budget(asked, dict.fromkeys(names, PACE), dict.fromkeys(names, epochs), spent=spent)


def test_a_run_is_startup_steps_and_validations_with_one_at_the_end():
    assert PACE.seconds(20) == pytest.approx(2 + 20 * 1 + 21 * 1)
    assert Pace(0.0, 0.0, 1.0, steps=10, every=3).seconds(7) == 2 + 1 + 1  # after 3, 6 and the last, then the answers


def test_ten_seeds_are_chosen_where_all_epochs_fit_and_five_before_epochs_are_reduced():
    whole = 2 * PACE.seconds(40)
    assert (fit(10 * whole).seeds, fit(10 * whole).most) == (10, 40)
    assert (fit(7.5 * whole).seeds, fit(7.5 * whole).most) == (7, 40)
    found = fit(5 * whole - 1)
    assert (found.seeds, found.most, found.detail) == (5, 39, "5 seeds of 39 epochs")
    assert found.seconds == pytest.approx(10 * PACE.seconds(39))


def test_fewer_than_five_seeds_are_chosen_only_where_they_would_have_less_than_thirty_epochs():
    enough = 2 * PACE.seconds(30)
    assert (fit(5 * enough).seeds, fit(5 * enough).most) == (5, 30)
    assert (fit(5 * enough - 1).seeds, fit(5 * enough - 1).most) == (4, 37)
    assert (fit(3 * enough - 1).seeds, fit(3 * enough - 1).most) == (3, 29)
    assert (fit(3 * 2 * PACE.seconds(1)).seeds, fit(3 * 2 * PACE.seconds(1)).most) == (3, 1)


def test_seeds_that_are_named_are_kept_or_refused_with_the_time_they_need():
    assert fit(10_000, seeds=2, named=True).seeds == 2
    least = 5 * 2 * PACE.seconds(1)
    assert (fit(least, seeds=5, named=True).seeds, fit(least, seeds=5, named=True).most) == (5, 1)
    told = (
        r"even 5 seeds of 2 arms for 1 epoch take about 50 s\. Allow 50 s \(10 min for 30 epochs\), or use fewer seeds"
    )
    with pytest.raises(BudgetError, match=told):
        fit(least - 0.1, seeds=5, named=True)


def test_a_budget_for_nothing_is_refused_with_what_would_do():
    with pytest.raises(BudgetError, match="even 3 seeds of 2 arms for 1 epoch take about 30 s"):
        fit(29)


def test_a_budget_that_timing_used_up_is_named_as_it_was_given_with_what_went_by():
    with pytest.raises(
        BudgetError,
        match=r"the budget is 50 s, of which 40 s are overhead.* take about 30 s. Allow 70 s",
    ):
        fit(50, spent=40.0)
    assert fit(70, spent=40.0).most == 1


def test_arms_with_other_epochs_are_reduced_in_proportion():
    paces = {"long": PACE, "short": PACE}
    found = fit_budget(BudgetRequest(3 * (13 + 8), 3, named=True), paces, {"long": 20, "short": 10})
    assert found.epochs == {"long": 5, "short": 2}


def test_runs_side_by_side_take_less_time_and_folds_more():
    assert fit(2 * 5 * PACE.seconds(40), slots=2).seeds == 10
    assert fit(2 * 10 * PACE.seconds(40), folds=2).seeds == 5
    assert makespan([3, 1, 1, 1], 2) == 3
    assert makespan([1, 1, 3], 2) == 4


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2.5 h", 9000), (12, 12.0), ("1d", 86400)]
)
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "half an hour", "5m later", "0s", -3, "-3m"])
def test_other_durations_are_refused(text):
    with pytest.raises(BudgetError, match="was given"):
        parse_duration(text)


def test_durations_are_said_in_short():
    assert [say_duration(s) for s in (0.5, 75, 600, 7200)] == ["0.5 s", "75 s", "10 min", "2.0 h"]
