"""Runs of any task are explained with their own kind of answer, and so are runs written before there were tasks."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import saccade
from saccade.explanation.explain import explain
from saccade.tasks import Multilabel
from support.golden import FOLDER
from support.lists import COLUMNS, LABELS, write_task_lists
from support.training import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    for task, data in write_task_lists(root).items():
        settings = tiny(data__img_size=16)
        saccade.train(str(data), task=task, epochs=1, out=root / task, settings=settings, quiet=True)
    return root


@pytest.fixture(scope="module")
def images(place):
    return sorted((place / "images").glob("*.png"))[-2:]


def asked(run: Path, images) -> np.ndarray:
    """Return what a run's model answers, raw."""
    from saccade.building.loading import open_model
    from saccade.data.image import decode

    loaded = open_model(run)
    return np.concatenate(
        [loaded.model(loaded.normalize(loaded.frame(decode(path, name="x"))[None])).detach() for path in images]
    )


def views_of(explanation, place=0):
    return {view.key: view for view in explanation.samples[place].views}


def test_labels_are_said_with_a_share_each_that_does_not_depend_on_the_others(place, images):
    explanation = explain(place / "multilabel", images)
    shares = 1 / (1 + np.exp(-asked(place / "multilabel", images)))
    for row, image in zip(shares, explanation.samples, strict=True):
        assert dict(image.answer) == pytest.approx(dict(zip(sorted(LABELS), row, strict=True)), rel=1e-4)
        best = sorted(LABELS)[int(row.argmax())]
        assert image.answer[0][0] == best
        gradcam = next(view for view in image.views if view.key == "gradcam")
        assert gradcam.numbers["class"] == best
        assert repr(best) in gradcam.figures[0].caption
    assert explanation.outputs == Multilabel.presenter.outputs_key
    page = explanation.save(place / "explained-labels")
    numbers = json.loads((page.parent / "numbers.json").read_text())["samples"][0]
    assert isinstance(numbers["said"]["answer"], list)
    assert ">Label<" in page.read_text()


def test_numbers_are_told_in_their_own_unit_and_the_first_is_asked_about(place, images):
    explanation = explain(place / "regress", images, against=place / "regress")
    spec = saccade.load_model(place / "regress")[1]
    values = asked(place / "regress", images) * np.array(spec.extra["std"]) + np.array(spec.extra["mean"])
    for row, image in zip(values, explanation.samples, strict=True):
        assert image.answer == []
        assert image.said.record["values"] == pytest.approx(dict(zip(("level", "red"), row, strict=True)), rel=1e-4)
        assert image.other_said == image.said
        assert [(name, share) for name, _, share in image.rows] == [("level", None), ("red", None)]
        caption = next(view for view in image.views if view.key == "gradcam").figures[0].caption
        assert "Places that raise 'level' in the whole answer, number 1 of the 2" in caption
    text = explanation.save(place / "explained-numbers").read_text()
    assert image.rows[0][1] in text
    assert ">Share<" not in text
    assert "no prediction for the whole image" not in text


def test_validation_images_of_any_run_serve_to_compare_layers(place, images):
    for task in COLUMNS:
        view = views_of(explain(place / task, images[0], views=["cka"], data="run"))["cka"]
        assert view.figures[0].numbers["images"] == 10
        other = str(place / "regress.csv")
        view = views_of(explain(place / task, images[0], views=["cka"], data=other, samples=6))["cka"]
        assert view.figures[0].numbers["images"] == 6


def test_runs_of_other_tasks_are_compared_by_layers_alone(place, images):
    with pytest.raises(ValueError, match=r"different tasks, multilabel and regress .*--views cka"):
        explain(place / "multilabel", images, against=place / "regress")
    explanation = explain(place / "multilabel", images, against=place / "regress", views=["cka"], data="run")
    assert len(views_of(explanation)["cka"].figures) == 2
    assert explanation.samples[0].other_rows == []


def test_command_prints_what_was_said(place, images, capsys):
    from saccade.cli import main

    main(["explain", str(place / "regress"), str(images[0]), "--views", "density", "--out", str(place / "out")])
    told = capsys.readouterr()
    assert f"{images[0].name}: level " in told.err
    assert told.out.strip().endswith("index.html")


def test_run_written_before_tasks_is_explained(tmp_path):
    with tarfile.open(FOLDER / "written_before.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    image = np.random.default_rng(0).integers(0, 256, (20, 20), dtype=np.uint8)
    explanation = explain(tmp_path / "run", image, data="run", samples=6)
    answer = explanation.samples[0].answer
    assert len(answer) == 5
    assert sum(share for _, share in answer) <= 1
    assert explanation.outputs == "classes"
    assert views_of(explanation)["gradcam"].figures
    assert ">Class<" in explanation.save(tmp_path / "out").read_text()
