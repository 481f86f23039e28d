import json

import pytest

from saccade.comparison.conclude.soundness import Probes, late_fall, warn_of_chance, warn_of_losses
from saccade.comparison.plan.plan import Note
from saccade.comparison.plan.snapshot import DataCache
from saccade.comparison.run.processes import Slot
from saccade.comparison.run.worker import _do
from saccade.tasks.metric import MetricSpec
from saccade.training.recipes import configure
from saccade.training.trial import Trial
from support.training import TINY

ACCURACY = MetricSpec("top1", "accuracy", share=True, chance=0.1)


def records(losses):
    return [{"epoch": number, "train_loss": loss} for number, loss in enumerate(losses, 1)]


def write(folder, losses, off_epochs=0):
    folder.mkdir(parents=True)
    settings = {"schedule": {"epochs": len(losses)}, "augment": {"off_epochs": off_epochs}}
    (folder / "config.yaml").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records(losses)))
    return folder


def test_a_straight_line_is_steep_and_a_curve_that_levels_off_is_not():
    assert late_fall(records([4 - 0.1 * n for n in range(20)])) == pytest.approx(0.21, abs=0.01)
    assert late_fall(records([1 + 3 * 0.8**n for n in range(30)])) < 0.02
    assert late_fall(records([4.0, 3.0, 2.0])) is None
    assert late_fall(records([2.0] * 10)) is None
    assert late_fall(records([2.0, float("nan"), *[1.0] * 8, float("nan")])) is None


def test_arms_whose_loss_still_falls_are_named(tmp_path):
    steep = write(tmp_path / "a", [4 - 0.1 * n for n in range(20)])
    level = write(tmp_path / "b", [1 + 3 * 0.8**n for n in range(30)])
    notes = warn_of_losses({"steep": {0: steep}, "level": {0: level}})
    assert [note.arm for note in notes] == ["steep"]
    assert "under-trained" in str(notes[0])
    assert "more epochs" in notes[0].advice


def test_a_loss_that_falls_because_augmentation_ended_is_no_sign_of_too_few_epochs(tmp_path):
    losses = [*(1 + 3 * 0.8**n for n in range(24)), *[0.3] * 6]
    told, not_told = write(tmp_path / "a", losses), write(tmp_path / "b", losses, off_epochs=6)
    assert [note.arm for note in warn_of_losses({"told": {0: told}, "not": {0: not_told}})] == ["told"]


def test_of_too_few_augmented_epochs_all_are_judged_and_settings_of_another_version_do_no_harm(tmp_path):
    falling = [4 - 0.1 * n for n in range(10)]
    short, none, strange = (write(tmp_path / name, falling, off) for name, off in (("a", 6), ("b", 10), ("c", 0)))
    (strange / "config.yaml").write_text("augment: {of_tomorrow: 1}")
    notes = warn_of_losses({"short": {0: short}, "none": {0: none}, "strange": {0: strange}})
    assert [note.arm for note in notes] == ["short", "none", "strange"]


def test_arms_near_chance_are_named_where_chance_is_known():
    assert [note.arm for note in warn_of_chance({"base": 0.12, "good": 0.5, "none": None}, ACCURACY)] == ["base"]
    assert warn_of_chance({"base": 0.12}, MetricSpec("mae", "error", larger_is_better=False)) == []
    assert warn_of_chance({"base": 0.12}, None) == []


def fake_probes(tmp_path, monkeypatch, scores):
    """Probes whose trials score by their model and rate."""
    monkeypatch.setattr(
        "saccade.tuning.store.run_trial",
        lambda config, *_, **__: Trial(scores[(config.model.name, config.optim.lr)]),
    )
    return Probes(tmp_path, DataCache())


def test_a_better_rate_and_a_better_resnet_are_said(tmp_path, monkeypatch):
    config = configure("small", {**TINY, "optim.lr": 2e-3, "schedule.epochs": 40, "data.train_limit": 2000})
    scores = {("glnet_nano", 2e-3): 0.2, ("glnet_nano", 5e-4): 0.5, ("resnet18", 4e-3): 0.7}
    found = fake_probes(tmp_path, monkeypatch, scores).warn({"base": config}, {"base": 0.6}, tuned=False)
    assert "learning rate 0.0005 scores 50.00%; its own learning rate, 0.002: 20.00%" in str(found[0])
    assert "far below a small ResNet" in str(found[1])
    sound = fake_probes(tmp_path / "b", monkeypatch, {**scores, ("glnet_nano", 5e-4): 0.21})
    assert sound.warn({"base": config}, {"base": 0.69}, tuned=False) == []


def test_a_process_that_trained_the_runs_probes_as_well(tmp_path, monkeypatch):
    config = configure("small", {**TINY, "optim.lr": 2e-3, "schedule.epochs": 40, "data.train_limit": 2000})
    scores = {("glnet_nano", 2e-3): 0.2, ("glnet_nano", 5e-4): 0.5, ("resnet18", 4e-3): 0.1}
    fake_probes(tmp_path, monkeypatch, scores)
    asked = {"do": "doubt", "folder": str(tmp_path), "scores": {"base": 0.6}, "tuned": False, "seconds": 60.0}
    asked |= {"configs": {"base": Slot({}).settings(config)}}
    (note,) = _do(json.loads(json.dumps(asked)), DataCache())["notes"]
    assert "learning rate 0.0005 scores 50.00%" in str(Note(**note))
    assert _do({**asked, "folder": str(tmp_path / "late"), "seconds": -1.0}, DataCache()) == {"notes": []}


def test_short_runs_and_tuned_arms_are_not_probed_in_vain(tmp_path, monkeypatch):
    short = configure("small", {**TINY, "schedule.epochs": 5})
    probes = fake_probes(tmp_path, monkeypatch, {})
    assert probes.warn({"base": short}, {"base": 0.6}, tuned=False) == []
    assert not (tmp_path / "probes").exists()
    long = configure("small", {**TINY, "optim.lr": 2e-3, "schedule.epochs": 40})
    tuned = fake_probes(tmp_path, monkeypatch, {("resnet18", 4e-3): 0.1})
    assert tuned.warn({"base": long}, {"base": 0.6}, tuned=True) == []
