import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from saccade.comparison.compare import plan_comparison
from saccade.comparison.plan import common, fitting, planning, timing
from saccade.comparison.plan.arms import parse_arm
from saccade.comparison.plan.plan import estimate_detectable
from saccade.comparison.plan.request import Request
from saccade.comparison.plan.snapshot import DataCache, check_all, inspect_arm
from saccade.comparison.run.processes import Crew, Slot, shared_by
from saccade.runs.run import RunError
from saccade.settings import ConfigError, overlay
from saccade.tasks import MetricSpec
from saccade.training.defaults import validate_every
from saccade.training.pace import Pace
from support.comparisons import SETTINGS, TINY
from support.trainings import png_folder

CPU = torch.device("cpu")
ACCURACY = MetricSpec("top1", "accuracy", share=True)
PACE = Pace(startup=10.0, step=1.0, validation=5.0, steps=3, how="told by the test")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every arm takes 1 s a step, whatever the machine does."""
    monkeypatch.setattr(timing, "time_probe", lambda *_: PACE)
    monkeypatch.setattr(planning.Planner, "spent", lambda _: 0.0)


@pytest.fixture(scope="module")
def cache():
    return DataCache()


def plan(*arms, out, **options):
    options = {"seeds": 3, "epochs": 2, "settings": SETTINGS, "device": "cpu", **options}
    return plan_comparison(arms=["base", *arms], out=out, **options)


def look(text, cache, seed=0):
    config = parse_arm(text).configure(None, {**SETTINGS, "schedule.epochs": 2, "seed": seed})
    return inspect_arm(config, cache, CPU)


def test_a_plugin_changes_its_setting_and_nothing_else(tmp_path):
    found = plan("broadcast", out=tmp_path / "c")
    arm = found.arm("broadcast")
    assert dict(arm.changes) == {"model.plugins": ([], ["broadcast"])}
    assert [str(check) for check in arm.checks if not check.equal] == []
    assert arm.parameters == found.arm("base").parameters
    assert arm.macs is not None
    assert arm.macs > 0


def test_a_plan_writes_nothing(tmp_path):
    plan("broadcast", out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_extra_weights_of_a_task_are_counted_and_shared_ones_begin_equal(tmp_path):
    check = plan("drloc", out=tmp_path / "c").arm("drloc").check("initial weights")
    assert not check.equal
    assert "in this arm only (locators" in check.detail
    shared = check.detail.split(" shared")[0].split(" of ")
    assert shared[0] == shared[1]


def test_another_batch_size_is_caught_and_explained(tmp_path):
    found = plan("big:=batch_size=48", out=tmp_path / "c").arm("big")
    differing = {check.what: check.detail for check in found.checks if not check.equal}
    assert set(differing) == {"batches", "schedule", "optimizer"}
    assert "because optim.batch_size = 48, not 32" in differing["batches"]
    assert found.check("order of the samples").equal  # the same permutation, cut elsewhere
    assert found.check("augmentation draws").equal


def test_fewer_training_images_and_repeats_are_caught(tmp_path):
    found = plan("few:=data.train_limit=64", "twice:=augment.repeats=2", out=tmp_path / "c")
    few, twice = found.arm("few"), found.arm("twice")
    assert "64 samples against 96, because data.train_limit = 64" in few.check("training samples").detail
    assert not few.check("order of the samples").equal
    assert "augment.repeats = 2, not 1" in twice.check("order of the samples").detail
    assert not twice.check("augmentation draws").equal
    assert twice.check("training samples").equal


def test_another_order_is_caught_even_if_no_setting_explains_it(cache):
    reference, other = look("base", cache), look("base", cache)
    assert all(check.equal for check in check_all(reference, other))
    swapped = other.order[0].clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    other = replace(other, order=(swapped, *other.order[1:]))
    caught = {check.what: check.detail for check in check_all(reference, other) if not check.equal}
    assert caught == {
        "order of the samples": "not explained by any setting",
        "augmentation draws": "not explained by any setting",
    }


def test_another_seed_is_caught_in_order_draws_and_weights(cache):
    caught = {c.what for c in check_all(look("base", cache), look("base", cache, seed=1)) if not c.equal}
    assert caught == {"order of the samples", "augmentation draws", "initial weights"}


def test_one_changed_weight_is_caught(cache):
    reference, other = look("base", cache), look("base", cache)
    name = next(iter(other.weights))
    changed = replace(other, weights={**other.weights, name: (other.weights[name][0], "other")})
    check = next(c for c in check_all(reference, changed) if c.what == "initial weights")
    assert not check.equal
    assert f"1 have other initial values ({name})" in check.detail


def test_arms_with_equal_settings_are_found_and_not_run_twice(tmp_path):
    settings = {**SETTINGS, "optim.lr": 0.5}
    found = plan("again:=base", "lr=0.5", "broadcast", out=tmp_path / "c", settings=settings)
    assert [arm.identical_to for arm in found.arms] == [None, "base", "base", None]
    assert found.runs == 6


def test_expected_time_follows_from_the_pace(tmp_path):
    found = plan("broadcast", out=tmp_path / "c")
    assert found.seconds == 2 * 3 * (10 + 2 * 3 * 1 + 3 * 5)
    assert "told by the test" in str(found)
    assert found.detectable == pytest.approx(0.042, abs=0.02)


def test_a_budget_reduces_epochs_and_chooses_the_seeds_that_are_not_named(tmp_path):
    found = plan("broadcast", out=tmp_path / "c", epochs=20, seeds=None, budget=1.15 * 2 * 3 * (10 + 60 + 105))
    assert (found.seeds, found.arm("base").epochs) == ((0, 1, 2), 20)
    found = plan("broadcast", out=tmp_path / "c", epochs=20, seeds=5, budget=2 * 3 * (10 + 60 + 105))
    assert (found.seeds, found.arm("base").epochs) == ((0, 1, 2, 3, 4), 11)
    assert "allows 5 seeds of 11 epochs (rule: 5 seeds" in str(found)
    assert "Arms will probably look under-trained: 11 epochs, fewer than 20" in str(found)
    assert "30 min would be enough for 5 seeds of 20 epochs" in str(found)
    with pytest.raises(
        ValueError, match=r"5 seeds of 2 arms for 1 epoch.* Allow .* for 20 epochs\), or use fewer seeds"
    ):
        plan("broadcast", out=tmp_path / "c", epochs=20, seeds=5, budget="1m")


def test_what_planning_took_belongs_to_the_budget(tmp_path, monkeypatch):
    budget = 2 * 3 * (10 + 60 + 105)
    monkeypatch.setattr(planning.Planner, "spent", lambda _: 120.0)
    found = plan("broadcast", out=tmp_path / "c", epochs=20, seeds=5, budget=budget)
    assert found.seconds is not None
    assert found.seconds <= budget - 120


def test_a_plan_that_can_see_nothing_says_so_instead_of_a_size_there_is_not(tmp_path):
    found = replace(plan("broadcast", out=tmp_path / "c"), detectable=1.53, seeds=(0, 1), samples=20)
    assert "Too small to detect a difference: with 2 seeds on 20 validation samples" in str(found)
    assert "153" not in str(found)


def test_one_of_a_thing_is_told_in_the_singular(tmp_path):
    found = replace(plan("broadcast", out=tmp_path / "c"), runs=1, seeds=(4,), finished=1)
    assert "1 run, seed 4; 1 finished." in str(found)
    assert "4 runs, seeds 0, 1; none finished." in str(replace(found, runs=4, seeds=(0, 1), finished=0))
    assert "as in 1 finished run," in estimate_detectable(ACCURACY, seeds=2, samples=50, arms=1, scores=[0.5])[1]


def test_an_arm_that_cannot_be_built_is_named_and_the_rest_planned(tmp_path):
    found = plan("bad:=model.options={nonsense: 3}", "broadcast", out=tmp_path / "c")
    assert "nonsense" in str(found.arm("bad").failed)
    assert "cannot be run" in str(found)
    assert found.runs == 6


def test_other_validation_images_are_refused(tmp_path):
    samples = png_folder(tmp_path / "a", train=24, val=9)
    others = png_folder(tmp_path / "b", train=24, val=6)
    settings = {"model.options": TINY, "optim.batch_size": 8, "data.img_size": 16, "data.workers": 0}
    options = {"out": tmp_path / "c", "settings": settings, "data": str(samples)}
    with pytest.raises(
        ConfigError, match=r"is validated on different samples than 'base' \(6 samples .*because of data.path"
    ):
        plan(f"x:=data.path={others}", **options)


def test_validation_images_held_out_by_seed_are_noticed(tmp_path):
    samples = png_folder(tmp_path / "a", train=60, val=0)
    settings = {"model.options": TINY, "optim.batch_size": 8, "data.img_size": 16, "data.workers": 0}
    found = plan("broadcast", out=tmp_path / "c", settings=settings, data=str(samples / "train"))
    config = parse_arm("base").configure(None, {**settings, "data.path": str(samples / "train")})
    if not hasattr(config.data, "split_seed"):
        assert not found.same_samples
        assert "different for each seed" in str(found)
    assert found.arm("broadcast").check("validation samples").equal


def test_arms_may_have_other_image_sizes(cache):
    small = look("data.img_size=14", cache)
    check = next(c for c in check_all(look("base", cache), small) if c.what.startswith("size"))
    assert "because data.img_size = 14, not 28" in check.detail


def test_one_seed_is_refused_unless_it_is_meant(tmp_path):
    with pytest.raises(ValueError, match="at least 2, better 5"):
        plan("broadcast", out=tmp_path / "c", seeds=1)
    found = plan("broadcast", out=tmp_path / "c", seeds=[4], seeds_fixed=True)
    assert (found.seeds, found.detectable) == ((4,), None)
    with pytest.raises(ValueError, match="seeds must differ"):
        plan("broadcast", out=tmp_path / "c", seeds=[1, 1])
    with pytest.raises(ConfigError, match="use seeds="):
        plan("broadcast", out=tmp_path / "c", settings={"seed": 3})


def test_order_and_draws_are_those_that_training_uses(cache):
    """The snapshot's order must be the feed's own, read from batches as they come."""
    from saccade.training.parallel import Alone
    from saccade.training.resolve import resolve
    from saccade.training.setup import assemble

    config = overlay(parse_arm("base").configure(None, SETTINGS), {"seed": 5})
    snapshot, (choice, data) = inspect_arm(config, cache, CPU), cache.open(config)
    resolved, spec = resolve(config, choice, data, CPU)
    feed = assemble(resolved, choice, data, spec, world=Alone(), device=CPU).feed
    batches = list(feed.epoch(1))
    assert torch.equal(torch.cat([batch["index"] for batch in batches]), snapshot.order[1])
    assert torch.equal(torch.cat([batch["key"] for batch in batches]), snapshot.keys[1])
    assert np.isfinite(snapshot.parameters)


def batches(found):
    return {arm.check("batches").detail for arm in found.arms if arm.name != "base"}


def test_size_batches_and_rate_may_be_given_by_their_short_names(tmp_path):
    few = {"data.train_limit": 96, "model.options": TINY}
    found = plan("broadcast", out=tmp_path / "c", batch_size=24, lr=0.004, img_size=16, settings=few)
    assert batches(found) == {"batch size 24, 4 steps per epoch"}


def test_a_rate_of_one_arm_leaves_the_batches_of_all_as_the_recipe_has_them(tmp_path):
    few = {"data.train_limit": 96, "model.options": TINY}
    assert batches(plan("broadcast", out=tmp_path / "a", settings=few)) == {"batch size 16, 6 steps per epoch"}
    assert batches(plan("lr=0.004", out=tmp_path / "b", settings=few)) == {"batch size 256, 1 step per epoch"}


@pytest.mark.parametrize(("arm", "kept"), [("broadcast", 60), ("augment.mix_prob=0.8", None)])
def test_augmentation_of_one_arm_leaves_that_of_all_as_the_recipe_has_it(tmp_path, arm, kept):
    made = planning.Planner(Request(arms=["base", arm], out=tmp_path / "c", settings=SETTINGS))
    assert {config.augment.full_epochs for config in made.configs.values()} == {kept}


def test_only_of_a_share_of_right_answers_the_smallest_difference_is_known_before_runs():
    known = {"seeds": 5, "samples": 1000, "arms": 1}
    assert estimate_detectable(ACCURACY, **known)[0] == pytest.approx(0.02, abs=0.01)
    for metric in (
        MetricSpec("mae", "mean absolute error", larger_is_better=False),
        MetricSpec("map", "mean average precision", share=True, statistic=np.mean),
    ):
        size, how = estimate_detectable(metric, **known)
        assert size is None
        assert how == f"unknown until runs are finished, as the variance of {metric.words} is not known"


def test_compiling_is_planned_by_kinds_of_blocks_that_arms_share(tmp_path, monkeypatch):
    kept, last = [], []
    monkeypatch.setattr(timing.Timing, "compiles", lambda *_: True)
    fit = fitting.fit_budget
    monkeypatch.setattr(
        fitting, "fit_budget", lambda *args, **given: last.append(given["spent"]) or fit(*args, **given)
    )
    settings = {**SETTINGS, "model.name": "vit_tiny_patch16_224", "model.options": {"depth": 4, "embed_dim": 48}}
    for arm in ("loss.smoothing=0.2", "broadcast", "model.drop_path=0.1", "model=test_byobnet+model.options={}"):
        plan(arm, out=tmp_path / "c", settings=settings, budget="10m")
        kept.append(last[-1])
    plan("broadcast", out=tmp_path / "c", settings=settings, budget="118s", seeds=2)
    kept.append(last[-1])
    alone, more = timing.FIRST_COMPILED + timing.KIND_COMPILED, timing.KIND_COMPILED
    # blocks with drop path are one kind, whatever their rates; the first one has none
    assert kept[:3] == [alone, alone + more, alone + more]
    assert kept[3] == alone + timing.WHOLE_COMPILED * more  # it repeats none
    assert kept[4] == 118 * fitting.MOST_COMPILED


@pytest.mark.parametrize(("gpus", "times"), [(("0",), 1), (("0",) * 3, 3), (("0", "1") * 2, 2), (("0",) * 64, 10)])
def test_runs_that_share_a_gpu_are_planned_to_take_longer(gpus, times, tmp_path):
    planner = planning.Planner(Request(arms=["base", "broadcast"], out=tmp_path / "c", settings=SETTINGS))
    planner.twins = {"base": "base", "broadcast": "broadcast"}
    slots = [Slot({"CUDA_VISIBLE_DEVICES": gpu}) for gpu in gpus]
    planner.timing.gpu, planner.timing.beside = True, shared_by(slots[:10])
    pace = planner.timing.paces({"base": planner.configs["base"]})["base"]
    assert (pace.step, pace.validation) == pytest.approx((times * timing.COMPILED, 5.0 * times))
    assert ("share a GPU" in pace.how) == (times > 1)


@pytest.fixture
def planner(tmp_path):
    """A planner of an arm beside base, with a process that is never begun."""

    def make(*arms, **options):
        made = planning.Planner(Request(arms=["base", *arms], out=tmp_path / "c", settings=SETTINGS, **options))
        made.crew = made.timing.crew = Crew([Slot({})])
        made.crew.call = lambda: None
        return made

    return make


def test_the_first_arm_is_timed_by_another_process_while_arms_are_built(planner, monkeypatch):
    building, inspect = threading.Event(), common.inspect_arm
    monkeypatch.setattr(timing, "time_probe", lambda *_: PACE if building.wait(60) else pytest.fail("it is waited for"))
    monkeypatch.setattr(common, "inspect_arm", lambda *given: building.set() or inspect(*given))
    found = planner("broadcast")
    assert found.plan(keep=False).plan.seconds is not None
    assert found.timing.known == {"base": PACE, "broadcast": PACE}


@pytest.mark.parametrize(
    ("arm", "budget", "timed"),
    [
        ("broadcast", None, 1),
        ("broadcast", "30m", 1),
        ("broadcast", "130s", 2),  # it fits, but not if it were slower
        ("lr=0.001", "30m", 1),
        (f"wide:=model.options={TINY | {'dims': [16, 32]}}", "30m", 2),
        ("batch_size=16", "30m", 2),
        ("repeated:=augment.repeats=2", "30m", 2),
    ],
)
def test_arms_that_compute_as_much_are_not_timed_where_there_is_room(arm, budget, timed, planner, monkeypatch):
    asked = []
    monkeypatch.setattr(timing, "time_probe", lambda *given: asked.append(given) or PACE)
    planner(arm, budget=budget, seeds=2, epochs=2).plan(keep=False)
    assert len(asked) == timed


def test_an_arm_that_cannot_be_timed_is_told_of(planner, monkeypatch):
    def time_probe(config, *_):
        if config.optim.batch_size == 16:
            raise RuntimeError("no memory")
        return PACE

    monkeypatch.setattr(timing, "time_probe", time_probe)
    notes = planner("large:=batch_size=16").plan(keep=False).notes
    assert [str(note) for note in notes if note.kind == "untimed"] == ["large could not be timed: no memory"]


@pytest.mark.parametrize(
    ("train", "val", "epochs", "every"),
    [(9469, 3925, 100, 5), (9469, 3925, 20, 1), (740, 296, 100, 4), (50_000, 10_000, 100, 2), (100, 10_000, 200, 10)],
)
def test_long_runs_validate_after_every_few_epochs(train, val, epochs, every):
    config = parse_arm("base").configure(None, {"schedule.epochs": epochs})
    assert validate_every(config, train, val) == every
    assert validate_every(overlay(config, {"schedule.patience": 3}), train, val) == 1
    assert validate_every(overlay(config, {"keep.evaluate_every": 4}), train, val) == 4


def test_how_often_runs_validate_stays_as_it_was_begun(tmp_path):
    def every(*arms, **options):
        made = planning.Planner(Request(arms=["base", "drloc", *arms], out=tmp_path / "c", epochs=60, **options))
        return {job.config.keep.evaluate_every for job in made.plan(keep=True).jobs}

    assert every(settings={**SETTINGS, "keep.evaluate_every": 1}) == {1}
    (tmp_path / "c" / "comparison.json").unlink()
    assert every(settings=SETTINGS) == {3}
    assert every("own:=keep.evaluate_every=7", settings=SETTINGS) == {3, 7}
    record = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert record.pop("every") == 3
    (tmp_path / "c" / "comparison.json").write_text(json.dumps(record))  # as one that was begun before
    assert every(settings=SETTINGS) == {1}


def test_all_arms_augment_as_suits_the_longest_and_as_they_were_begun(tmp_path):
    def mixed(*arms, **options):
        asked = Request(arms=["base", *arms], out=tmp_path / "c", settings=SETTINGS, device="cpu", **options)
        ready = planning.Planner(asked).plan(keep=True)
        assert {job.config.augment.full_epochs for job in ready.jobs} == {None}
        return {(job.config.schedule.epochs, job.config.augment.mix_prob) for job in ready.jobs}

    assert mixed("short:=epochs=15", epochs=24) == {(24, 0.1), (15, 0.1)}
    record = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert record.pop("settled") is True
    (tmp_path / "c" / "comparison.json").write_text(json.dumps(record))  # as one that was begun before
    assert mixed("short:=epochs=15", epochs=24) == {(24, 0.5), (15, 0.5)}
    (tmp_path / "c" / "comparison.json").unlink()
    ((epochs, probability),) = mixed("broadcast", epochs=60, seeds=3, budget="17m")
    assert 15 < epochs < 60
    assert probability == pytest.approx(0.5 * (epochs - 15) / 45, rel=0.01)


def test_a_plan_shows_what_runs_of_its_length_are_augmented_by(tmp_path):
    cut = plan("broadcast", out=tmp_path / "c", epochs=24)
    assert dict(cut.arm("broadcast").changes) == {"model.plugins": ([], ["broadcast"])}


def test_runs_of_two_precisions_are_not_compared(tmp_path, monkeypatch):
    """`auto` is float32 on a CPU and bfloat16 on a GPU: the seeds that are left may not be trained in the other."""

    def go_on(kind):
        monkeypatch.setattr(planning.Planner, "_kind", lambda _: kind)
        return planning.Planner(Request(arms=["base", "broadcast"], out=tmp_path / "c", settings=SETTINGS)).plan(
            keep=True
        )

    go_on("cpu")
    with pytest.raises(RunError, match=r"started in float32 and would continue in bfloat16 .* --device"):
        go_on("cuda")
    assert go_on("cpu").jobs
    record = json.loads((tmp_path / "c" / "comparison.json").read_text())
    for found in record["samples"].values():
        assert found.pop("precision") == "float32"
    (tmp_path / "c" / "comparison.json").write_text(json.dumps(record))  # as one that was begun before
    assert go_on("cuda").jobs
