"""Failed and diverged trainings, numbers without samples, and looks: what a verdict has to count."""

import numpy as np
import pytest
from benchmarks import simulate

from saccade.comparison import judge, paired_difference
from saccade.comparison.difference import spent
from saccade.comparison.folder import Folder
from saccade.comparison.paired import paired_scores
from saccade.comparison.spread import mean_squares, paired_spread
from saccade.comparison.stability import Stability, find_diverged, weigh
from saccade.tasks.metric import MetricSpec

ACCURACY = MetricSpec("top1", "accuracy", share=True, chance=0.1)
LOSS = MetricSpec("loss", "loss", larger_is_better=False)


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
    assert "of the trainings that finished; of this arm 1 of 5 failed (4% to 62%), of the reference 0 of 5" in now.text
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


def test_a_training_that_finished_and_learned_nothing_is_found_and_said():
    scores = {0: 0.8, 1: 0.81, 2: 0.11, 3: 0.79}
    assert find_diverged(scores, {}, usual=0.8, metric=ACCURACY, samples=1000) == (2,)
    assert find_diverged(scores, {}, usual=0.12, metric=ACCURACY, samples=100) == ()  # nobody has learned
    losses = {0: [2.0, 1.0], 1: [2.0, 5.0], 2: [2.0, float("nan")], 3: [2.0]}
    assert find_diverged({}, losses, usual=None, metric=LOSS, samples=9) == (1, 2)
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


def test_a_verdict_over_seeds_alone_says_that_it_is_of_these_very_images():
    a, b = [0.5, 0.51, 0.52], [0.6, 0.612, 0.62]
    assert paired_scores(a, b).verdict.text.endswith(
        "over seeds on these very samples: of other samples it says nothing"
    )
    own = paired_scores(a, b, samples_fixed=False)  # every seed has images of its own
    assert "these very samples" not in own.verdict.text


def test_all_looks_together_spend_the_chance_of_a_false_alarm_once():
    assert sum(spent(look) for look in range(1, 5000)) == pytest.approx(1, abs=1e-3)
    assert spent(1) > spent(2) > spent(3)
    assert spent(0) == 1


def test_a_later_look_is_judged_by_a_wider_interval():
    d = better(4, by=0.02)
    once, first, second = (judge({"arm": d}, look=look)["arm"] for look in (0, 1, 2))
    assert second.low < first.low < once.low == d.low
    assert once.p_holm < first.p_holm < second.p_holm
    assert first.low == d.interval(1 - 0.05 * spent(1))[0]
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
        ours |= np.abs(ms.mean) > spread.half_width(1 - 0.05 * spent(look))
    assert ours.mean() < 0.06
    assert plain.mean() > 0.1


def test_looks_are_counted_in_the_folder_and_the_same_seeds_are_the_same_look(tmp_path):
    folder = Folder(tmp_path)
    folder.write({"arms": {}}, {})
    assert [folder.count_look(seeds) for seeds in ((0, 1), (1, 0), (0, 1, 2), (0, 1), (0, 1, 2, 3))] == [1, 1, 2, 1, 3]
    assert folder.record()["looks"] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_look_from_before_looks_were_counted_is_counted(tmp_path):
    folder = Folder(tmp_path)
    folder.write({"arms": {}}, {})
    folder.result_file.write_text('{"reference": "base", "arms": [{"name": "base", "seeds": [0, 1]}]}')
    assert folder.count_look((0, 1, 2)) == 2
