"""Time in the plan of a comparison: pace, budget, who times which arm, and how often runs validate."""

import json
import threading
from dataclasses import replace

import pytest

from saccade.comparison.plan import common, fitting, planning, timing
from saccade.comparison.plan.arms import parse_arm
from saccade.comparison.plan.plan import estimate_detectable
from saccade.comparison.plan.request import Request
from saccade.comparison.plan.snapshot import DataCache
from saccade.comparison.run.processes import Crew, Slot, shared_by
from saccade.settings import TrainConfig, overlay
from saccade.training.defaults import validate_every
from support.comparisons import SETTINGS, TINY
from support.planning import ACCURACY, PACE, plan


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every arm takes 1 s a step, whatever the machine does."""
    monkeypatch.setattr(timing, "time_probe", lambda *_: PACE)
    monkeypatch.setattr(planning.Planner, "spent", lambda _: 0.0)


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


@pytest.mark.parametrize("asked", [None, True, False])
def test_only_what_a_run_compiles_is_planned_as_compiled(tmp_path, asked):
    rows = "".join(f"a text of {number} words,{'ab'[number % 2]}\n" for number in range(20))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    engine = {"engine.compile": asked}
    texts = overlay(TrainConfig(), {"task": "text", "data.path": str(tmp_path / "texts.csv"), **engine})
    images = overlay(TrainConfig(), engine)
    on_gpu, on_cpu = (timing.Timing(None, DataCache(), gpu=gpu, done=lambda _: []) for gpu in (True, False))
    assert (on_gpu.compiles(images), on_gpu.compiles(texts)) == (asked is not False, asked is True)
    assert not on_cpu.compiles(images)
