import pytest

from saccade.comparison.plan.budget import Pace, fit_budget, makespan
from saccade.support.durations import BudgetError, parse_duration, say_duration

PACE = Pace(startup=2.0, step=0.1, validation=1.0, steps=10)  # 2 + epochs * (1 + 1) + 1 seconds a run


def fit(budget, *, seeds=5, epochs=20, arms=2, slots=1, spent=0.0):
    names = [f"arm{number}" for number in range(arms)]
    paces = dict.fromkeys(names, PACE)
    return fit_budget(budget, paces, dict.fromkeys(names, epochs), seeds=seeds, slots=slots, spent=spent)


def test_a_run_is_startup_steps_and_validations_with_one_at_the_end():
    assert PACE.seconds(20) == pytest.approx(2 + 20 * 1 + 21 * 1)
    assert Pace(0.0, 0.0, 1.0, steps=10, every=3).seconds(7) == 2 + 1 + 1  # after 3, 6 and the last, then the answers


def test_everything_asked_is_kept_where_it_fits():
    found = fit(43 * 10)
    assert (found.seeds, set(found.epochs.values()), found.detail) == (5, {20}, "")
    assert found.seconds == pytest.approx(430)


def test_seeds_are_given_up_first_and_only_down_to_three():
    found = fit(43 * 10 - 1)
    assert (found.seeds, set(found.epochs.values())) == (4, {20})
    assert found.detail == "4 seeds instead of 5"
    found = fit(43 * 6 - 1)
    assert (found.seeds, set(found.epochs.values())) == (3, {19})
    assert found.detail == "3 seeds instead of 5 and 19 epochs instead of 20"


def test_epochs_are_reduced_to_a_quarter_before_the_third_seed_is_given_up():
    quarter = 6 * (2 + 5 + 6)
    assert (fit(quarter).seeds, fit(quarter).epochs["arm0"]) == (3, 5)
    less = fit(quarter - 1)
    assert (less.seeds, less.epochs["arm0"]) == (2, 8)


def test_a_budget_for_nothing_is_refused_with_what_would_do():
    least = 4 * (2 + 1 + 2)
    assert fit(least).epochs["arm0"] == 1
    with pytest.raises(BudgetError, match="even 2 seeds of 2 arms for 1 epoch take about 20 s"):
        fit(least - 0.1)


def test_a_budget_that_timing_used_up_is_named_as_it_was_given_with_what_went_by():
    with pytest.raises(
        BudgetError,
        match=r"a budget of 50 s was given, of which 40 s are overhead.* take about 20 s. Give 60 s",
    ):
        fit(50, spent=40.0)
    assert fit(60, spent=40.0).epochs["arm0"] == 1


def test_two_asked_seeds_are_never_raised():
    assert fit(10_000, seeds=2).seeds == 2


def test_arms_with_other_epochs_are_reduced_in_proportion():
    paces = {"long": PACE, "short": PACE}
    found = fit_budget(3 * (13 + 8), paces, {"long": 20, "short": 10}, seeds=3)
    assert found.epochs == {"long": 5, "short": 2}


def test_runs_side_by_side_take_less_time():
    assert fit(43 * 5, slots=2).seeds == 5
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
