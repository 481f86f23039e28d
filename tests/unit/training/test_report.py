import json
import math
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from saccade.data.open import Data
from saccade.data.source import ArraySource, FileSource
from saccade.runs.run import Run
from saccade.settings import TrainConfig, overlay
from saccade.statistics import wilson
from saccade.tasks.classification.metrics import ClassificationMetrics
from saccade.training import train as training
from saccade.training.recipes import configure
from saccade.training.report import rewrite_report, write_report
from support.images import encoded
from support.markup import parse

EVIL = "<script>alert('class')</script>"
EVIL_FILE = '"><img src=x onerror=alert(1)>.png'
RANDOM = np.random.default_rng(0)


def record(epoch, **more):
    found = {"epoch": epoch, "step": 10 * epoch, "lr": 1e-3 / epoch}
    found |= {"train_loss": 2.0 / epoch, "train_top1": 1 - 1 / epoch}
    return found | {"images_per_second": 100.0 + epoch, "seconds": 1.5, "bad_samples": 0} | more


def make_run(path, *, classes=3, samples=60, epochs=4, settings=None, names=None, every=2, side=16):
    """Write a finished run as training would, and return it with its data."""
    names = names or [f"class {index}" for index in range(classes)]
    run = Run.create(path, configure("small", settings or {}))
    for epoch in range(1, epochs + 1):
        validated = {"val_loss": 1.5 / epoch, "val_top1": 0.2 * epoch / epochs} if epoch % every == 0 else {}
        run.append(record(epoch, **validated))
    labels = torch.arange(samples) % len(names)
    logits = torch.from_numpy(RANDOM.normal(size=(samples, len(names)))).float()
    logits[torch.arange(samples), labels] += 1.5
    answers = ClassificationMetrics(None)
    answers.update({"output": logits}, {"target": labels, "place": torch.arange(samples)})
    save_file(answers.predictions(), run.predictions_file)
    images = RANDOM.integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
    source = ArraySource(images, labels.numpy(), classes=names, prefix="test")
    summary = {
        **{f"val_{name}": value for name, value in answers.compute().items()},
        "epochs": epochs,
        "steps": 10 * epochs,
        "seconds": 1.5 * epochs,
        "parameters": 1234567,
        "validation": {"samples": samples, "fingerprint": source.fingerprint()},
        "data": "a set",
        "classes": names,
        "bad_samples": {},
    }
    (run.path / "summary.json").write_text(json.dumps(summary))
    return run, Data(source, source, "a set", ())


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path / "run")


def read(run):
    text = run.report.read_text(encoding="utf-8")
    return text, parse(text)


def test_report_tells_the_result_of_the_run_with_its_interval(made):
    run, data = made
    assert write_report(run, data) == run.report
    _, page = read(run)
    summary, kept = run.summary(), run.predictions()
    right = int(kept["correct"].sum())
    low, high = wilson(right, 60)
    lead = page.all("p", "lead")[0].text
    assert f"{right / 60:.1%} of 60 validation images of 3 classes (95% interval {low:.1%} to {high:.1%})" in lead
    assert "most frequent class would be right for 33.3%" in lead
    facts = page.all("dl", "facts")[0].text
    for told in (f"{summary['val_top1']:.2%}", "1.23 M1,234,567", "4 of 10040 steps in 6 s", "Speed102", "Best epoch4"):
        assert told in facts
    assert page.all("h1")[0].text == "glnet_nano on a set"


def test_curves_and_table_hold_every_epoch_and_only_measured_values(made):
    run, data = made
    write_report(run, data)
    _, page = read(run)
    header = [cell.text for cell in page.all("th") if cell.attrs["scope"] == "col"][:10]
    rows = [dict(zip(header, row, strict=False)) for row in page.rows("Every epoch")]
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    for row, told in zip(rows, run.metrics(), strict=True):
        assert float(row["train_loss"]) == pytest.approx(told["train_loss"], rel=1e-3)
        assert row["val_loss"] == (f"{told['val_loss']:.4g}" if "val_loss" in told else "")
    loss = next(e for e in page.all("svg", "chart") if e.attrs["aria-label"].startswith("Loss."))
    assert "training: from 2 at epoch 1 to 0.5 at epoch 4" in loss.attrs["aria-label"]
    assert "validation: from 0.75 at epoch 2 to 0.375 at epoch 4" in loss.attrs["aria-label"]


def test_worst_images_are_those_of_the_highest_loss(made):
    run, data = made
    write_report(run, data)
    _, page = read(run)
    kept = run.predictions()
    worst = kept["place"][kept["loss"].argsort(descending=True)][:24].tolist()
    assert [item.text for item in page.all("p", "name")] == [f"test[{place}]" for place in worst]
    assert len(page.all("img")) == 24


def test_names_cannot_break_out_of_the_page(tmp_path):
    run, _ = make_run(tmp_path / "run", names=[EVIL, "</style>", "b&b"], samples=6)
    folder = tmp_path / "pictures"
    folder.mkdir()
    files = [f"{number}{EVIL_FILE}" for number in range(6)]
    for number, name in enumerate(files):
        (folder / name).write_bytes(encoded(number, "PNG"))
    source = FileSource(folder, files, np.arange(6) % 3, classes=[EVIL, "</style>", "b&b"])
    summary = run.summary() | {"bad_samples": {EVIL_FILE: "<b>broken</b>"}, "data": EVIL}
    (run.path / "summary.json").write_text(json.dumps(summary))
    write_report(run, Data(source, source, EVIL, ()))
    text, page = read(run)
    assert [EVIL in script.text for script in page.all("script")] == [False]  # that of the charts
    assert len(page.all("style")) == 1
    assert not any(name.startswith("on") for element in page.elements for name in element.attrs)
    assert all(image.attrs["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert len(page.all("img")) == 6
    assert [EVIL_FILE, "<b>broken</b>"] in page.rows("1 sample that")
    assert EVIL in page.all("h1")[0].text
    assert EVIL not in text


def test_bad_images_are_left_out_of_the_worst(tmp_path):
    run, _ = make_run(tmp_path / "run", samples=6)
    files = [f"{number}.png" for number in range(6)]
    for number in (0, 2, 3, 5):
        (tmp_path / files[number]).write_bytes(encoded(number, "PNG"))
    (tmp_path / files[4]).write_bytes(b"")
    source = FileSource(tmp_path, files, np.arange(6) % 3, classes=["class 0", "class 1", "class 2"])
    write_report(run, Data(source, source, "a set", ()))
    _, page = read(run)
    assert sorted(item.text for item in page.all("p", "name")) == ["0.png", "2.png", "3.png", "5.png"]


@pytest.mark.parametrize("missing", ["summary.json", "predictions.safetensors", "metrics.jsonl", "all"])
def test_what_a_run_does_not_hold_is_left_out(made, missing):
    run, data = made
    for name in ("summary.json", "predictions.safetensors", "metrics.jsonl"):
        if missing in (name, "all"):
            (run.path / name).unlink()
    write_report(run, data)
    text, page = read(run)
    sections = [section.attrs["aria-labelledby"] for section in page.all("section")]
    assert ("classes" in sections) == (missing not in ("predictions.safetensors", "all"))
    assert ("No epoch has finished" in text) == (missing in ("metrics.jsonl", "all"))
    assert ("not finished" in text) == (missing in ("summary.json", "all"))
    assert "settings" in sections


def test_report_without_data_says_that_images_were_not_at_hand(made):
    run, _ = made
    write_report(run)
    text, page = read(run)
    assert "were not available" in text
    assert not page.all("img")


@pytest.mark.parametrize("places", [np.arange(59), np.roll(np.arange(60), 1)], ids=["fewer", "moved"])
def test_images_of_other_data_are_not_shown(made, places):
    run, data = made
    other = data.val.subset(places)
    write_report(run, Data(other, other, "other", ()))
    text, page = read(run)
    assert "have changed since the run" in text
    assert not page.all("img")


def test_settings_that_differ_are_listed_and_the_rest_is_whole(tmp_path):
    run, data = make_run(
        tmp_path / "run",
        settings={
            "optim.lr": 0.0123,
            "model.plugins": ["drloc:weight=0.3"],
            "data.img_size": 16,
            "data.train_limit": 9,
        },
    )
    write_report(run, data)
    _, page = read(run)
    recipe = configure("small", {})
    assert page.rows("Differences from the recipe small") == [
        ["data.img_size", "16", "automatic"],
        ["data.train_limit", "9", "none"],
        ["model.plugins", "['drloc:weight=0.3']", "[]"],
        ["optim.lr", "0.0123", str(recipe.optim.lr)],
        ["optim.least_steps", "none", str(recipe.optim.least_steps)],
    ]
    assert run.settings.read_text() in [element.text for element in page.all("pre")]


def test_settings_are_held_against_the_recipe_for_the_runs_model(tmp_path):
    run = Run.create(tmp_path / "run", configure("sot", {"model.name": "sot_base", "seed": 3}))
    write_report(run)
    rows = parse(run.report.read_text()).rows("Differences from the recipe sot")
    assert [row[0] for row in rows] == ["seed"]


def test_a_recipe_that_is_gone_is_replaced_by_the_defaults(tmp_path):
    run = Run.create(tmp_path / "run", overlay(TrainConfig(), {"recipe": "gone.yaml", "seed": 7}))
    write_report(run)
    assert read(run)[1].rows("Differences from the defaults") == [["seed", "7", "0"]]


def test_command_repeats_the_settings(made):
    run, data = made
    write_report(run, data)
    _, page = read(run)
    command = next(element.text for element in page.all("pre") if element.text.startswith("saccade train"))
    recipe = re.search(r"--recipe (\S+)", command)[1]
    again = configure(recipe, {})
    assert overlay(again, {"recipe": "small"}) == run.config()


@pytest.mark.parametrize(("classes", "images", "side"), [(2, 30, 500), (30, 300, 224), (1000, 3000, 8)])
def test_report_is_of_bounded_size_and_well_formed(tmp_path, classes, images, side):
    run, data = make_run(tmp_path / "run", classes=classes, samples=images, side=side, epochs=3)
    write_report(run, data)
    read(run)
    assert run.report.stat().st_size < 3_000_000


def test_long_trainings_are_thinned(tmp_path):
    run = Run.create(tmp_path / "run", TrainConfig())
    run.metrics_file.write_text("".join(json.dumps(record(epoch)) + "\n" for epoch in range(1, 5001)))
    write_report(run)
    _, page = read(run)
    rows = page.rows("Every 25th epoch")
    assert [rows[0][0], rows[1][0], rows[-1][0]] == ["1", "26", "5000"]
    assert run.report.stat().st_size < 1_000_000


def test_values_that_are_not_finite_do_not_stop_the_report(made):
    run, data = made
    run.append(record(5, train_loss=math.nan, val_loss=math.inf, val_top1=math.nan))
    write_report(run, data)
    assert read(run)[1].rows("Every epoch")[-1][3] == "not finite"


def test_report_is_written_again_only_with_the_same_images(tmp_path, made):
    run, data = made
    images, labels = data.val.array(), data.val.labels
    np.savez(tmp_path / "set.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    config = overlay(run.config(), {"data.path": str(tmp_path / "set.npz")})
    again = Run.create(tmp_path / "again", config)
    for name in ("predictions.safetensors", "metrics.jsonl"):
        (again.path / name).write_bytes((run.path / name).read_bytes())
    from saccade.data.open import open_data

    summary = run.summary()
    for fingerprint, shown in ((open_data(config.data.path).val.fingerprint(), 24), ("another", 0)):
        summary["validation"]["fingerprint"] = fingerprint
        (again.path / "summary.json").write_text(json.dumps(summary))
        rewrite_report(again.path)
        assert len(read(again)[1].all("img")) == shown


def test_training_ends_with_its_report_and_does_not_fail_for_want_of_it(tmp_path, monkeypatch):
    options = {"dims": [8, 16], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2]}
    settings = {"data.train_limit": 40, "optim.batch_size": 20, "model.options": options, "engine.threads": 1}
    given = {"epochs": 1, "settings": settings, "device": "cpu", "quiet": True}
    trained = training.train(out=tmp_path / "one", **given)
    _, page = read(Run.open(trained.path))
    assert f"{trained.top1:.2%}" in page.all("dl", "facts")[0].text
    assert len(page.all("img")) == 24

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("saccade.training.report.write_text", fail)
    with pytest.warns(UserWarning, match="report was not written: OSError"):
        other = training.train(out=tmp_path / "two", **given)
    assert Run.open(other.path).finished()
    assert not Run.open(other.path).report.exists()
