"""Runs of any task are evaluated by the metrics of their task, with intervals, conditions and differences."""

import json
import shutil
import tarfile
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import saccade
from saccade.evaluation.evaluate import evaluate
from saccade.evaluation.opening import EvaluationError, open_models
from saccade.runs.run import Run
from saccade.statistics.bootstrap import fewer
from saccade.tasks import TASKS
from saccade.tasks.detection.task import answer_filter
from saccade.tasks.multilabel.metrics import mean_average_precision
from support.golden import FOLDER
from support.lists import write_images, write_list, write_task_lists
from support.markup import parse
from support.masks import make_masks
from support.objects import make_objects
from support.training import tiny

GOLDEN = FOLDER / "written_before.tar.gz"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    for task, data in write_task_lists(root).items():
        for name, seed in (("one", 0), ("two", 1)):
            settings = tiny(seed=seed, data__img_size=16)
            saccade.train(str(data), task=task, epochs=1, out=root / task / name, settings=settings, quiet=True)
    return root


@pytest.fixture(scope="module", params=["multilabel", "regress"])
def runs(request, place):
    return place / request.param


@pytest.fixture(scope="module")
def robust(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "evaluation"
    return evaluate([runs / "one", runs / "two"], robust=True, limit=5, resamples=200, quiet=True, out=out)


def test_numbers_are_those_the_run_was_validated_with(runs):
    found, run = evaluate(runs / "one", quiet=True), Run.open(runs / "one")
    summary = run.summary()
    assert found.samples == summary["validation"]["samples"]
    assert found.task == runs.name
    assert found.primary.name == summary["primary"]
    names = [name for name in found.specs if f"val_{name}" in summary]
    assert found.primary.name in names
    assert len(names) >= 4
    for name in names:
        assert found.metrics()[name] == pytest.approx(summary[f"val_{name}"], rel=1e-4, abs=1e-6)
        estimate = found.run().metrics[name]
        assert estimate.low <= estimate.high
    assert found.run().metrics[found.primary.name].low < found.run().metrics[found.primary.name].high
    assert found.run().classes == []
    assert found.run().reliability == []


def test_every_condition_is_measured_by_the_primary_metric_and_attacks_are_left_out(robust):
    primary = robust.primary.name
    names = set(robust.metrics("one"))
    assert names == set(robust.metrics("two"))
    kinds = [name for name in names if name.startswith("corruption.") and name.count(".") == 2]
    assert len(kinds) == 75
    assert {"centre_occlusion.0.25", "patch_shuffle.4", f"robust.mean_corruption_{primary}"} <= names
    mean = np.mean([robust.metrics()[name] for name in kinds])
    assert robust.metrics()[f"robust.mean_corruption_{primary}"] == pytest.approx(mean)
    assert not any(name.startswith(("fgsm", "pgd", "attack")) for name in names)
    assert robust.settings["attack"] is None
    assert any("attacks skipped: they need a classifier" in note for note in robust.notes)
    assert any(note.startswith("5 of ") for note in robust.notes)


def test_differences_are_paired_over_the_same_resamples(robust, runs):
    primary = robust.primary.name
    found = robust.difference("two")
    assert found.metric == primary
    assert found.value == pytest.approx(robust.metrics("two")[primary] - robust.metrics("one")[primary])
    assert found.low <= found.value <= found.high
    assert found.p_value is None
    same = evaluate([runs / "one", runs / "one"], quiet=True)
    assert all(one.low == one.high == 0 for one in same.differences)


def test_files_tell_the_numbers_with_words_and_units(robust):
    stored = json.loads((robust.page.parent / "evaluation.json").read_text())
    spec = robust.primary
    assert stored["task"] == robust.task
    assert stored["primary"] == spec.name
    assert stored["metrics"][spec.name] == {
        "words": spec.words,
        "unit": spec.unit,
        "share": spec.share,
        "larger_is_better": spec.larger_is_better,
    }
    text = robust.page.read_text()
    page, value = parse(text), robust.metrics()[spec.name]
    assert stored["runs"][0]["metrics"][spec.name]["value"] == pytest.approx(value, abs=1e-6)
    titles = {e.text for e in page.all("h2")}
    assert {"Differences", "Corruptions", "Occlusion and shuffling", "How it was measured"} <= titles
    assert not {"Attacks", "Calibration", "Accuracy by class"} & titles
    first = page.rows("5 samples")[0]
    assert first[0].lower() == spec.words
    assert first[1].startswith(spec.show(value))
    for word in ("ccuracy", "nan", "McNemar"):
        assert word not in text
    assert spec.name in robust.to_markdown()


def test_interval_of_a_metric_that_is_no_mean_is_that_of_resampled_rows(place):
    run = place / "multilabel" / "one"
    found = evaluate(run, quiet=True, seed=4, resamples=300).run().metrics["map"]
    records = Run.open(run).scores().columns["map"]
    draws = np.random.default_rng([4, 0xB007]).integers(len(records), size=(300, len(records)))
    resampled = [mean_average_precision(records[rows]) for rows in draws]
    assert (found.low, found.high) == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=1e-5)


def test_numbers_made_of_all_records_are_resampled_less_often_the_more_records_there_are():
    assert fewer(100, 2000) == 2000
    assert fewer(1000, 2000) == 500
    assert fewer(100_000, 2000) == 200
    assert fewer(100_000, 100) == 100
    assert fewer(100, 2000, condition=True) == 200


def test_other_samples_are_read_as_the_task_reads_them(place):
    rows = write_images(place, train=3, val=8)
    given = write_list(place / "given.csv", rows, ("level", "red"))
    assert evaluate(place / "regress" / "one", given, quiet=True).samples == 8
    with pytest.raises(ValueError, match="'level' and the training samples have 'level', 'red'"):
        evaluate(place / "regress" / "one", write_list(place / "few.csv", rows, ("level",)), quiet=True)
    with pytest.raises(ValueError, match=r"row 1 has .* in the column 'level'; label columns hold 0 and 1"):
        evaluate(place / "multilabel" / "one", given, quiet=True)
    named = write_list(place / "named.csv", rows, ("labels",))
    assert evaluate(place / "multilabel" / "one", named, quiet=True).samples == 8


def test_what_makes_no_sense_is_refused(place, tmp_path):
    with pytest.raises(EvaluationError, match=r"task multilabel and one \(2\) for regress.*one by one"):
        evaluate([place / "multilabel" / "one", place / "regress" / "one"], quiet=True)
    (tmp_path / "subset.txt").write_text("red\ngreen\n")
    with pytest.raises(EvaluationError, match=r"are for classifiers, but .* was trained for the task multilabel"):
        evaluate(place / "multilabel" / "one", subset=tmp_path / "subset.txt", quiet=True)


def test_run_written_before_tasks_is_evaluated_as_it_was(tmp_path):
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    found, run = evaluate(tmp_path / "run", quiet=True), Run.open(tmp_path / "run")
    kept = run.predictions()
    assert found.task == "classify"
    assert found.metrics()["top1"] == pytest.approx(kept["correct"].double().mean().item())
    assert found.metrics()["nll"] == pytest.approx(kept["loss"].double().mean().item(), rel=1e-4)
    assert sum(score.correct for score in found.run().classes) == int(kept["correct"].sum())
    assert torch.bincount(kept["label"]).tolist() == [score.samples for score in found.run().classes]
    assert not any("different samples" in note for note in found.notes)


# Options of a task that are given to `evaluate`


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    """A run that was asked by windows."""
    root = tmp_path_factory.mktemp("segmenter")
    return saccade.train(
        str(make_masks(root / "set", train=4, val=2)), task="segment:crop=32,test=slide", model="resnet10t", epochs=1,
        batch_size=2, img_size=64, out=root / "run", device="cpu", quiet=True,
        settings={"model.head": "fpn:width=8,inner=32", "data.workers": 0, "engine.threads": 1},
    ).path  # fmt: skip


@pytest.mark.parametrize("alone", [False, True])
def test_options_that_are_given_are_laid_over_those_of_training(segmenter, alone, tmp_path):
    target = shutil.copy(segmenter / "model.safetensors", tmp_path / "x.safetensors") if alone else segmenter
    (plain,) = open_models([target], device="cpu")
    (given,) = open_models([target], device="cpu", task="segment:flip=true")
    assert (plain.task.options.test, plain.task.options.crop) == ("slide", 32)
    assert given.task.options == replace(plain.task.options, flip=True)


@pytest.mark.parametrize(
    ("option", "told"),
    [("loss=dice", "loss .*has no effect on a trained model"), ("ignore=1", "ignore .*controls how samples are read")],
)
def test_options_by_which_no_trained_model_is_asked_are_refused(segmenter, option, told):
    with pytest.raises(EvaluationError, match=told):
        saccade.evaluate(segmenter, task=f"segment:{option}", quiet=True)


def test_every_option_of_every_task_is_said_to_be_asked_by_or_read_by_or_is_of_training():
    of_training = {
        "segment": {"loss", "aux", "scale", "uniform_scale", "cat_max_ratio"},
        "detect": {"scale", "uniform_scale"},
        "multilabel": {"loss", "gamma_pos", "gamma_neg", "clip"},
        "text": {"metric", "max_length", "truncate", "scratch"},
        "vqa": {"max_length", "truncate", "scratch", "dropout"},
    }
    for name, kind in TASKS.items():
        if not kind.__module__.startswith("saccade."):
            continue
        known = {*(kind.asked_by or ()), *kind.reader.read_by} | of_training.get(name, set())
        assert {field.name for field in fields(kind.Options)} == known, name


def test_answers_of_a_detector_stand_by_the_options_that_are_given(tmp_path):
    run = saccade.train(
        str(make_objects(tmp_path / "set", train=4, val=2)), task="detect:least=0.001,kept=7", model="resnet10t",
        epochs=1, batch_size=2, img_size=64, out=tmp_path / "run", device="cpu", quiet=True,
        settings={"model.head": "retinanet:width=8,depth=1", "data.workers": 0, "engine.threads": 1},
    ).path  # fmt: skip
    (given,) = open_models([run], device="cpu", task="detect:overlap=0.3,least=0.002")
    assert answer_filter(given.spec) == {"overlap": 0.3, "least": 0.002, "kept": 7}
    (given,) = open_models([run], device="cpu", task="detect:kept=300")
    assert given.loaded.model.head.kept >= 300
    assert answer_filter(given.spec)["kept"] == 300
    few = saccade.evaluate(run, task="detect:kept=1", resamples=100, quiet=True)
    batch = {"image": torch.zeros(1, 3, 64, 64)}
    (one,) = open_models([run], device="cpu", task="detect:kept=1")
    assert one.task.answer(batch)["scores"].shape[1] == 1
    assert "task options: detect:kept=1" in few.notes
