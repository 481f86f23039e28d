import numpy as np
import pytest

from saccade.comparison.conclude.evidence import epoch_seconds, per_sample, read_evidence, same_samples
from saccade.comparison.conclude.measure import Measure
from saccade.comparison.plan.plan import PlannedArm
from saccade.comparison.plan.request import Request, find_metric, resolve_metric
from saccade.data.targets import ClassTargets
from saccade.statistics import paired_difference, paired_scores, unpaired_difference
from saccade.tasks.classification.metrics import metric_specs
from support.comparisons import write_run

RNG = np.random.default_rng(0)
BASE, BETTER = RNG.random((3, 200)) < 0.6, RNG.random((3, 200)) < 0.9
LABELS = np.arange(200) % 2


def asked(metric=None, **wish):
    """A question about runs of two classes."""
    return resolve_metric(Request(arms=(), metric=metric, **wish), metric_specs(2), "top1")


def evidence(tmp_path, name, correct, *, seeds=(0, 1, 2), **options):
    runs = {s: write_run(tmp_path / name / f"seed-{s}", row, **options) for s, row in zip(seeds, correct, strict=True)}
    return read_evidence(runs)


@pytest.fixture
def pair(tmp_path):
    return {name: evidence(tmp_path, name, x, labels=LABELS) for name, x in (("base", BASE), ("better", BETTER))}


def test_difference_is_that_of_the_answers_paired_by_seed_and_image(pair):
    found = Measure(pair, asked("top1")).difference("base", "better")
    expected = paired_difference(BASE, BETTER)
    for name in ("mean", "low", "high", "p_value", "detectable", "design", "right_or_wrong"):
        assert getattr(found, name) == getattr(expected, name)


def test_answers_are_matched_by_place_and_unread_images_left_out(tmp_path):
    shuffled = np.random.default_rng(1).permutation(200)[:190]
    arms = {"base": evidence(tmp_path, "base", BASE)}
    arms["other"] = evidence(tmp_path, "other", BETTER[:, shuffled], places=shuffled)
    measure = Measure(arms, asked("top1"))
    kept = np.sort(shuffled)
    assert measure.places.tolist() == kept.tolist()
    found, expected = measure.difference("base", "other"), paired_difference(BASE[:, kept], BETTER[:, kept])
    assert found.per_seed.tolist() == expected.per_seed.tolist()
    assert (found.low, found.mcnemar_p) == (expected.low, expected.mcnemar_p)
    assert (per_sample(arms["other"], "top1", (1,), kept)[0] == BETTER[1, kept]).all()


def test_only_seeds_that_finished_in_both_arms_are_paired(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE)}
    arms["other"] = evidence(tmp_path, "other", BETTER[:2], seeds=(2, 0))
    found = Measure(arms, asked("top1")).difference("base", "other")
    assert found.per_seed == pytest.approx([BETTER[1].mean() - BASE[0].mean(), BETTER[0].mean() - BASE[2].mean()])


def test_different_seeds_are_compared_unpaired_and_said_so(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE)}
    arms["other"] = evidence(tmp_path, "other", BETTER, seeds=(7, 8, 9))
    measure = Measure(arms, asked("top1"))
    found = measure.difference("base", "other")
    assert found.design == "unpaired"
    assert (found.low, found.high) == pytest.approx(
        (unpaired_difference(BASE, BETTER).low, unpaired_difference(BASE, BETTER).high)
    )
    assert (measure.notes[0].kind, measure.notes[0].arm) == ("unpaired", "other")


def test_pairing_can_be_switched_off_and_one_seed_fixed(pair, tmp_path):
    assert Measure(pair, asked("top1", paired=False)).difference("base", "better").design == "unpaired"
    arms = {name: evidence(tmp_path / "one", name, x[:1], seeds=(0,)) for name, x in (("a", BASE), ("b", BETTER))}
    assert Measure(arms, asked("top1", seeds_fixed=True)).difference("a", "b").design == "fixed"
    with pytest.raises(ValueError, match="seed"):
        Measure(arms, asked("top1")).difference("a", "b")


def test_seeds_with_their_own_images_are_compared_over_seeds_alone(tmp_path):
    arms = {}
    for name, x in (("base", BASE), ("better", BETTER)):
        runs = {s: write_run(tmp_path / name / f"{s}", x[s], fingerprint=f"set {s}") for s in range(3)}
        arms[name] = read_evidence(runs)
    measure = Measure(arms, asked("top1"))
    assert not measure.same
    found = measure.difference("base", "better")
    expected = paired_scores(BASE.mean(1), BETTER.mean(1))
    assert (found.mean, found.low, found.n_samples) == pytest.approx((expected.mean, expected.low, 0))
    assert measure.classes("base", "better", ("cat", "dog")) == ()


def test_arms_that_validated_on_other_images_are_refused(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE)}
    arms["other"] = evidence(tmp_path, "other", BETTER, fingerprint="another")
    with pytest.raises(ValueError, match="different samples for seed 0"):
        same_samples(arms)


def test_classes_add_up_and_are_corrected_for_their_number(pair):
    rows = Measure(pair, asked("top1")).classes("base", "better", ("cat", "dog"))
    assert {row.name for row in rows} == {"cat", "dog"}
    total = sum(row.samples * row.difference.mean for row in rows) / 200
    assert total == pytest.approx(BETTER.mean() - BASE.mean())
    assert all(row.p_holm >= row.difference.p_value for row in rows)


def test_images_with_the_largest_gain_and_loss_come_first(tmp_path):
    base, other = np.zeros((2, 5), bool), np.zeros((2, 5), bool)
    other[:, 3] = True  # always gained
    other[0, 1] = True  # gained once
    base[:, 4] = True  # always lost
    arms = {name: evidence(tmp_path, name, x, seeds=(0, 1)) for name, x in (("base", base), ("other", other))}

    class Source:
        targets = ClassTargets(np.array([0, 0, 0, 1, 0]), ("cat", "dog"))

        def name(self, place):
            return f"image {place}"

    found = Measure(arms, asked("top1")).disagreements("base", "other", Source())
    assert [(one.place, one.reference, one.arm) for one in found] == [(3, 0, 1), (1, 0, 0.5), (4, 1, 0)]
    assert (found[0].name, found[0].label) == ("image 3", "dog")


def test_cost_leaves_out_the_first_epoch_and_is_paired_by_seed(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE, seconds=(9.0, 1.0, 1.0))}
    arms["slow"] = evidence(tmp_path, "slow", BETTER, seconds=(50.0, 2.0, 2.0))
    cost = Measure(arms, asked("top1")).cost("base", "slow", PlannedArm("slow", "slow", {}, macs=5))
    assert cost.seconds_per_step == pytest.approx(0.2)
    assert cost.step_ratio is not None
    assert cost.step_ratio.ratio == pytest.approx(2.0)
    assert (cost.parameters, cost.macs, cost.seconds) == (7, 5, 54.0)


def test_accuracy_at_equal_time_is_read_where_the_shorter_run_ends(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE, seconds=(5.0, 5.0), curve=(0.6, 0.8))}
    arms["slow"] = evidence(tmp_path, "slow", BETTER, seconds=(8.0, 8.0), curve=(0.7, 0.9))
    cost = Measure(arms, asked("top1")).cost("base", "slow", PlannedArm("slow", "slow", {}))
    assert cost.equal_seconds == pytest.approx(10.0)
    assert cost.at_equal_time is not None
    assert cost.at_equal_time.mean == pytest.approx(0.7 + 0.2 * 2 / 8 - 0.8)


def test_compiling_is_not_taken_for_training_at_equal_time(tmp_path):
    found = []
    for first in (1.0, 40.0):
        arms = {"base": evidence(tmp_path / str(first), "base", BASE, seconds=(1.0, 1.0, 1.0), curve=(0.5, 0.6, 0.7))}
        same = {"seconds": (first, 1.0, 1.0), "curve": (0.5, 0.6, 0.7)}
        arms["later"] = evidence(tmp_path / str(first), "later", BETTER, **same)
        cost = Measure(arms, asked("top1")).cost("base", "later", PlannedArm("later", "later", {}))
        assert cost.at_equal_time is not None
        found.append((cost.equal_seconds, cost.at_equal_time.mean))
    assert found == [(3.0, 0.0)] * 2


@pytest.mark.parametrize(
    ("seconds", "counted"), [([], []), ([9], [9]), ([9, 1], [1, 1]), ([9, 1, 3], [2, 1, 3]), ([1, 3, 3], [1, 3, 3])]
)
def test_a_first_epoch_counts_like_the_others_unless_it_was_shorter(seconds, counted):
    assert epoch_seconds([{"seconds": second} for second in seconds]) == counted


def test_before_its_first_validation_a_run_is_between_chance_and_its_accuracy(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE, seconds=(4.0,), curve=(0.6,))}
    arms["slow"] = evidence(tmp_path, "slow", BETTER, seconds=(8.0,), curve=(0.9,))
    cost = Measure(arms, asked("top1")).cost("base", "slow", PlannedArm("slow", "slow", {}))
    assert cost.at_equal_time is not None
    assert cost.at_equal_time.mean == pytest.approx((0.5 + 0.9) / 2 - 0.6)


def test_other_numbers_of_a_run_are_compared_over_samples_where_these_have_scores(tmp_path):
    arms = {"base": evidence(tmp_path, "base", BASE, val_loss=0.3, oddity=1.0)}
    arms["other"] = evidence(tmp_path, "other", BETTER, val_loss=0.2, oddity=2.0)
    found = Measure(arms, asked("top1")).others("base", "other")
    assert set(found) == {"val_loss"}  # the metric itself and numbers of unknown direction are left out
    assert found["val_loss"].mean == pytest.approx(BASE.mean() - BETTER.mean())  # of the losses of the samples
    assert (found["val_loss"].n_samples, found["val_loss"].samples_fixed) == (200, False)
    assert not found["val_loss"].larger_is_better
    odd = Measure(arms, asked("oddity", larger_is_better=True)).difference("base", "other")
    assert odd.mean == pytest.approx(1.0)
    assert (odd.n_samples, odd.samples_fixed) == (0, True)
    assert "not for other samples" in str(odd)


def test_metrics_by_image_and_by_class(pair):
    loss = Measure(pair, asked("loss")).difference("base", "better")
    assert loss.mean == pytest.approx(BASE.mean() - BETTER.mean())
    assert loss.verdict.kind == "helps"
    macro = Measure(pair, asked("macro_top1")).difference("base", "better")
    assert macro.mean == pytest.approx(BETTER.mean() - BASE.mean())


def test_a_metric_whose_direction_is_unknown_has_to_be_told():
    specs = {one.name: one for one in metric_specs(10)}
    found = [find_metric(specs, name) for name in ("val_loss", "top5", "oddity")]
    assert [one and one.larger_is_better for one in found] == [False, True, None]
    with pytest.raises(ValueError, match="larger_is_better"):
        asked("oddity")
    assert not asked("oddity", larger_is_better=False).larger_is_better
    assert not asked("top1", larger_is_better=False).larger_is_better
    assert asked().metric == "top1"


def test_an_unknown_metric_names_those_there_are(pair):
    with pytest.raises(ValueError, match="reports only val_top1"):
        Measure(pair, asked("auc", larger_is_better=True)).difference("base", "better")
