import json
import math
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from saccade.comparison.compare import compare
from saccade.comparison.plan import timing
from saccade.runs.run import Run, RunError
from saccade.settings import ConfigError, TrainConfig, flatten
from saccade.settings.decisions import latest, read_decisions
from saccade.training import loop
from saccade.training.train import train_config
from support.fresh import run
from support.small_comparison import ARMS, PACE, SMALL, options, small, times, write_images

CHANGED = ARMS[1]


def compare_until_killed(given):
    look_up = loop.Loop._checkpoint_or_stop

    def die(self):
        look_up(self)
        if "broadcast" in str(self.run.path) and self.run.path.name == "seed-1" and self.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.Loop._checkpoint_or_stop = die
    compare(**given)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(timing, "time_probe", lambda *_: PACE)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Three arms by three seeds on the embedded set, killed in the middle of the fifth run."""
    out = tmp_path_factory.mktemp("whole") / "c"
    log = out.with_name("log.txt")
    assert run(compare_until_killed, options(out), log=log) == -signal.SIGKILL, log.read_text()[-2000:]
    finished = {str(path.parent.relative_to(out)) for path in (out / "runs").glob("*/seed-*/summary.json")}
    return out, finished, times(out)


@pytest.fixture(scope="module")
def whole(killed):
    """The same, called again to its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time_probe", lambda *_: PACE)
        return compare(**options(killed[0]))


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A set on which a run is a matter of moments."""
    path = tmp_path_factory.mktemp("set") / "set.npz"
    write_images(path)
    return str(path)


def test_every_arm_is_trained_with_every_seed(whole):
    assert [(arm.name, arm.status, arm.seeds) for arm in whole.arms] == [
        (name, "finished", (0, 1, 2)) for name in ("base", CHANGED, "same")
    ]
    assert whole.reference == "base"
    assert len(list((whole.path / "runs").glob("*/seed-*/model.safetensors"))) == 9


def test_equal_trainings_differ_by_exactly_nothing(whole):
    judged = whole.differences["same"]
    assert (judged.difference.mean, judged.difference.low, judged.difference.high) == (0.0, 0.0, 0.0)
    assert judged.difference.per_seed.tolist() == [0.0, 0.0, 0.0]
    assert whole.verdict("same").kind == "never applied"
    assert "same was never applied" in (whole.path / "report.html").read_text()
    assert whole.disagreements["same"] == ()
    assert all(difference["same"].mean == 0 for difference in whole.other.values())


def test_an_arm_that_changes_nothing_is_told_of_and_no_other(whole):
    told = "same trained exactly like base for seeds 0, 1, 2: its changes had no effect there"
    assert [(one.arm, one.like, one.seeds, one.same) for one in whole.unaffected] == [
        ("same", "base", (0, 1, 2), "everything")
    ]
    assert [told in note.message for note in whole.notes if note.kind == "unaffected"] == [True]
    found = json.loads((whole.path / "result.json").read_text())
    assert found["unaffected"] == [{"arm": "same", "like": "base", "seeds": [0, 1, 2], "same": "everything"}]
    for file in ("result.md", "report.html"):
        assert told in (whole.path / file).read_text()


def test_scores_are_those_of_the_runs_and_the_difference_is_theirs(whole):
    for arm in whole.arms:
        summaries = [json.loads((arm.runs[seed] / "summary.json").read_text()) for seed in arm.seeds]
        assert list(arm.scores) == pytest.approx([summary["val_top1"] for summary in summaries])
    mean = whole.arm(CHANGED).mean - whole.arm("base").mean
    assert whole.differences[CHANGED].difference.mean == pytest.approx(mean)
    assert whole.differences[CHANGED].difference.n_samples == 1000


def test_a_result_is_written_whole_as_json_and_markdown(whole):
    found = json.loads((whole.path / "result.json").read_text())
    assert found["verdicts"]["same"]["kind"] == "never applied"
    assert found["differences"][CHANGED]["difference"]["n_seeds"] == 3
    assert len(found["classes"][CHANGED]) == 10
    assert found["costs"]["base"]["parameters"] == whole.costs["base"].parameters
    assert found["plan"]["arms"][1]["checks"][0] == {
        "what": "training samples",
        "equal": True,
        "detail": whole.plan.arm(CHANGED).check("training samples").detail,
    }
    text = (whole.path / "result.md").read_text()
    for part in ("# Which arm helps", f"| `{CHANGED}` |", "## Costs", "## Classes", "Held equal", "| loss |"):
        assert part in text


def test_every_run_keeps_who_decided_its_settings(whole):
    defaults = flatten(TrainConfig())
    for arm in whole.arms:
        for seed, path in arm.runs.items():
            config = Run(path).config()
            who = latest(read_decisions(path), config)
            assert {name for name, value in flatten(config).items() if value != defaults[name]} <= who.keys()
            assert (who["recipe"].who, who["engine.precision"].rule) == ("recipe", "precision")
            assert seed == 0 or who["seed"].rule == "seeds"
    said = str(whole.plan)
    assert "Settings of base that differ from the recipe:\n" in said
    assert "Decisions that differ between the arms:\n" in said


def test_costs_are_measured(whole):
    cost = whole.costs[CHANGED]
    assert cost.step_ratio is not None
    assert cost.step_ratio.n_rounds == 3
    assert cost.macs is not None
    assert cost.at_equal_time is not None
    assert math.isfinite(cost.at_equal_time.mean)


def test_asking_again_runs_nothing_and_finds_the_same(whole):
    before = times(whole.path)
    again = compare(**options(whole.path))
    assert times(whole.path) == before
    assert again.plan.finished == 9
    assert again.to_dict()["differences"] == whole.to_dict()["differences"]


def test_any_metric_that_images_have_scores_of_is_compared_over_images(whole):
    result = compare(**options(whole.path, metric="top5"))
    found = result.differences[CHANGED].difference
    assert (found.n_samples, found.right_or_wrong, found.share) == (1000, True, True)
    assert set(result.other) == {"val_loss", "val_top1"}
    assert (result.primary, result.sample_metric, result.class_metric) == ("top1", "top5", "top1")
    assert set(result.binary) == {"top1", "top5", "macro_top1"}
    words = (whole.path / "report.html").read_text(encoding="utf-8")
    assert "Its top-5 accuracy is " in words
    assert "Of 100 samples" not in words


def test_plan_and_verdicts_are_told_once(whole, capsys):
    again = compare(**options(whole.path, quiet=False))
    printed = capsys.readouterr()
    everything = printed.err + again.to_markdown()  # what the command prints
    assert everything.count("Held equal (checked for the first seed)") == 1
    assert everything.count(str(again.verdict(CHANGED))) == 1
    assert printed.err.rstrip().endswith(f"written: {again.path / 'report.html'}")
    assert "Held equal (checked for the first seed)" in (again.path / "result.md").read_text(encoding="utf-8")


def test_finished_runs_are_left_alone_after_a_kill(killed, whole):
    _, finished, before = killed
    after = times(whole.path)
    assert len(finished) == 4  # three arms with seed 0, and base with seed 1
    assert whole.plan.finished == 4
    assert all(after[name] == time for name, time in before.items() if str(Path(name).parent) in finished)


def test_a_run_killed_and_gone_on_with_ends_as_if_never_killed(killed, whole, tmp_path):
    run = Run.open(whole.arm(CHANGED).runs[1])
    assert str(run.path.relative_to(killed[0])) not in killed[1]
    assert not (run.path / "cost.json").exists()  # it was gone on with, not begun anew, so its whole time is not known
    train_config(run.config(), out=tmp_path / "run", quiet=True)
    for name in ("predictions.safetensors", "model.safetensors"):
        ours, theirs = load_file(run.path / name), load_file(tmp_path / "run" / name)
        assert all(bool((ours[key] == theirs[key]).all()) for key in theirs)


def test_a_seed_and_an_arm_can_be_added_later_and_finished_runs_stay(samples, tmp_path):
    first = compare(samples, **small(tmp_path / "c", arms=["base", "broadcast"], seeds=2))
    before = times(first.path)
    more = compare(samples, **small(tmp_path / "c", arms=["base", "broadcast", "again:=broadcast", "lr=0.01"], seeds=3))
    after = times(first.path)
    assert {name: after[name] for name in before} == before
    assert more.arm("lr=0.01").seeds == (0, 1, 2)
    assert more.plan.finished == 4
    assert (first.look, more.look) == (1, 2)
    assert [note.kind for note in more.notes if note.kind == "looks"] == ["looks"]
    assert compare(samples, **small(tmp_path / "c", arms=["base", "broadcast"], seeds=3)).look == 2  # nothing is new
    assert more.arm("again").identical_to == "broadcast"
    assert more.arm("again").scores == more.arm("broadcast").scores
    assert str(more.verdict("again")) == str(more.verdict("broadcast"))
    with pytest.raises(RunError, match="holds another comparison"):
        compare(samples, **small(tmp_path / "c", arms=["base", "broadcast"], seeds=2, epochs=2))


def test_arms_that_fail_are_named_and_the_rest_is_compared(samples, tmp_path):
    arms = ["base", "hot:=lr=1e30,optim.clip=null", "odd:=model.options={nonsense: 1}", "lr=0.01"]
    result = compare(samples, **small(tmp_path / "c", arms=arms, seeds=2))
    assert [arm.status for arm in result.arms] == ["finished", "failed", "failed", "finished"]
    assert set(result.differences) == {"lr=0.01"}
    assert "not a finite number" in str(result.verdict("hot"))
    assert "nonsense" in str(result.verdict("odd"))
    assert result.costs["hot"].seconds is None
    note = next(note for note in result.notes if (note.kind, note.arm) == ("failure", "hot"))
    assert note.message.startswith("hot failed, seeds 0, 1: the loss is not a finite number")
    assert json.loads(result.to_json())["arms"][1]["failures"]["0"]


def test_without_the_reference_the_others_are_compared_with_each_other(samples, tmp_path):
    arms = ["base", "cool:=lr=0.001", "cold:=lr=0.0001"]
    settings = {**SMALL, "optim.lr": 1e30, "optim.clip": None}
    result = compare(samples, **small(tmp_path / "c", arms=arms, seeds=2, settings=settings))
    assert result.arm("base").status == "failed"
    assert result.reference == "cool"
    assert set(result.differences) == {"cold"}
    assert ["compared with cool instead" in note.message for note in result.notes if note.kind == "reference"] == [True]
    assert result.verdict("base").kind == "cannot tell"


def test_a_fault_in_one_run_leaves_its_seed_out(samples, tmp_path, monkeypatch):
    original = loop.Loop._forward_backward

    def faulty(self, *args, **given):
        if self.config.seed == 1 and "broadcast" in str(self.run.path):
            raise OSError("the disk is gone")
        return original(self, *args, **given)

    monkeypatch.setattr(loop.Loop, "_forward_backward", faulty)
    result = compare(samples, **small(tmp_path / "c", arms=["base", "broadcast"]))
    arm = result.arm("broadcast")
    assert (arm.status, arm.seeds, dict(arm.failures)) == ("partly failed", (0, 2), {1: "OSError: the disk is gone"})
    assert result.differences["broadcast"].difference.n_seeds == 2
    assert (arm.stability.tried, arm.stability.failed) == (3, 1)
    assert "of this arm 1 of 3 failed (6% to 79%), of the reference 0 of 3 failed" in str(result.verdict("broadcast"))
    assert "Of broadcast's 3 runs, 1 failed" in (tmp_path / "c" / "report.html").read_text().replace("&#x27;", "'")


def test_ctrl_c_leaves_a_comparison_that_goes_on(samples, tmp_path, monkeypatch):
    original = loop.Loop._checkpoint_or_stop

    def interrupted(self):
        if self.run.path.name == "seed-1" and self.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        original(self)

    given = small(tmp_path / "c", arms=["base", "broadcast"], seeds=2)
    monkeypatch.setattr(loop.Loop, "_checkpoint_or_stop", interrupted)
    with pytest.raises(loop.Interrupted) as stopped:
        compare(samples, **given)
    monkeypatch.setattr(loop.Loop, "_checkpoint_or_stop", original)
    assert stopped.value.run == tmp_path / "c"
    run = next((tmp_path / "c" / "runs").glob("base-*/seed-1"))
    assert sorted(path.name for path in (run / "state").glob("step-*")) == ["step-000000000", "step-000000001"]
    result = compare(samples, **given)
    assert (result.plan.finished, result.arm("broadcast").seeds) == (2, (0, 1))


def test_changed_images_are_not_mixed_with_old_runs(tmp_path):
    path = tmp_path / "set.npz"
    write_images(path)
    given = small(tmp_path / "c", arms=["base", "lr=0.01"], seeds=2)
    compare(str(path), **given)
    write_images(path, shift=1)
    with pytest.raises(RunError, match="have changed since the comparison"):
        compare(str(path), **given)


def test_wrong_requests_are_refused_before_anything_is_trained(samples, tmp_path):
    for wrong, error in [
        ({"arms": ["base", "brodcast"]}, ConfigError),
        ({"seeds": 1}, ValueError),
        ({"metric": "oddity"}, ValueError),
        ({"budget": "soon"}, ValueError),
        ({"settings": {"optim.lrr": 1}}, ConfigError),
        ({"parallel": 0}, ValueError),
    ]:
        with pytest.raises(error):
            compare(samples, **small(tmp_path / "c", **wrong))
    assert not (tmp_path / "c" / "runs").exists()
