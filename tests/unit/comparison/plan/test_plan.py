import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from saccade.comparison.plan import planning, timing
from saccade.comparison.plan.arms import parse_arm
from saccade.comparison.plan.plan import estimate_detectable
from saccade.comparison.plan.request import Request
from saccade.comparison.plan.snapshot import DataCache, check_all, inspect_arm
from saccade.runs.run import RunError
from saccade.settings import ConfigError, overlay
from saccade.tasks import MetricSpec
from support.comparisons import SETTINGS, TINY
from support.planning import ACCURACY, PACE, plan
from support.trainings import png_folder

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every arm takes 1 s a step, whatever the machine does."""
    monkeypatch.setattr(timing, "time_probe", lambda *_: PACE)
    monkeypatch.setattr(planning.Planner, "spent", lambda _: 0.0)


@pytest.fixture(scope="module")
def cache():
    return DataCache()


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
