import pytest

from saccade.training.pace import Pace
from saccade.tuning.halving import Rung, make_rungs, plan_rungs, seconds_of, survivors

PACE = Pace(startup=1.0, step=0.1, validation=0.5, steps=20)


def test_fewer_candidates_train_longer():
    assert make_rungs(27, 2, 100) == [Rung(27, 2), Rung(9, 6), Rung(3, 18), Rung(2, 54)]
    assert make_rungs(9, 6, 10) == [Rung(9, 6), Rung(3, 10)]
    assert make_rungs(2, 5, 100) == [Rung(2, 5)]


@pytest.mark.parametrize("budget", [12.0, 60.0, 600.0, 6000.0])
def test_rounds_fit_into_the_time_and_use_it(budget):
    rungs = plan_rungs(budget, PACE, candidates=72, most=100)
    assert seconds_of(rungs, PACE) <= budget
    assert rungs[-1].epochs <= 100
    assert [rung.count for rung in rungs] == sorted((rung.count for rung in rungs), reverse=True)


def test_more_time_means_longer_training():
    short, long = (plan_rungs(budget, PACE, candidates=72, most=100) for budget in (200.0, 2000.0))
    assert short[-1].epochs < long[-1].epochs


def test_a_time_in_which_two_cannot_be_tried_gives_no_rounds():
    assert plan_rungs(3.0, PACE, candidates=72, most=100) == []


def test_those_that_failed_never_go_on():
    scores = [(0, 0.5), (1, None), (2, 0.9), (3, 0.7)]
    assert survivors(scores, 3, larger=True) == [2, 3, 0]
    assert survivors(scores, 2, larger=False) == [0, 3]
