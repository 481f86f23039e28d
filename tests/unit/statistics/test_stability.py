"""Failed and diverged trainings: what a verdict has to count."""

import numpy as np

from saccade.statistics import Stability, judge, paired_difference, weigh


def better(seeds, *, by=0.1):
    rng = np.random.default_rng(0)
    a = rng.random((seeds, 2000)) < 0.7
    return paired_difference(a, a | (rng.random((seeds, 2000)) < by / 0.3))


def weighed(seeds, failed=0, base_failed=0, diverged=(), worth=(0.7, 0.6), **more):
    judged = judge({"arm": better(seeds - failed, **more)})["arm"]
    arm = Stability.count(seeds - failed, failed, diverged)
    return judged.verdict, weigh(judged, arm, Stability.count(seeds - base_failed, base_failed), worth=worth).verdict


def test_an_arm_that_fails_now_and_then_is_not_called_better_for_its_other_trainings():
    alone, now = weighed(5, failed=1)
    assert (alone.kind, now.kind) == ("helps", "unstable")
    assert (
        "over the trainings that finished; of this arm 1 of 5 failed (4% to 62%), of the reference 0 of 5" in now.text
    )
    assert now.more_seeds is None


def test_a_share_of_failures_that_could_not_turn_a_verdict_leaves_it_and_is_said():
    alone, now = weighed(100, failed=1)
    assert (alone.kind, now.kind) == ("helps", "helps")
    assert now.text.startswith(alone.text)
    assert "1 of 100 failed" in now.text


def test_failures_of_the_reference_count_too():
    assert weighed(5, base_failed=1)[1].kind == "helps"  # it makes the reference worse
    judged = judge({"arm": better(5)})["arm"]
    worse = judge({"arm": paired_difference(np.ones((5, 400)), (np.arange(400) % 10 > 0) * np.ones((5, 1)))})["arm"]
    assert worse.verdict.kind == "hurts"
    arm, base = Stability.count(5, 0), Stability.count(4, 1)
    assert weigh(worse, arm, base, worth=(0.8, 0.9)).verdict.kind == "unstable"
    assert weigh(judged, arm, arm, worth=(0.8, 0.9)) is judged


def test_a_failure_that_nobody_knows_the_worth_of_turns_any_verdict():
    assert weighed(100, failed=1, worth=None)[1].kind == "unstable"


def test_a_training_that_finished_and_learned_nothing_is_said():
    verdict = weighed(5, diverged=(2,))[1]
    assert verdict.kind == "unstable"
    assert "seed 2 of this arm finished but did not learn" in verdict.text


def test_an_arm_that_never_learns_is_worse_not_unstable():
    rng = np.random.default_rng(0)
    found = paired_difference(rng.random((4, 1000)) < 0.8, rng.random((4, 1000)) < 0.1)
    arm = Stability.count(4, 0, (0, 1, 2, 3))
    verdict = weigh(judge({"arm": found})["arm"], arm, Stability.count(4, 0), worth=(0.0, 0.7)).verdict
    assert verdict.kind == "hurts"
    assert "seeds 0, 1, 2, 3 of this arm finished but did not learn" in verdict.text
