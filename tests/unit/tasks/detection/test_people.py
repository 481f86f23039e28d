"""What people meet of a detector: its run and report, tables and drawings of answers, the server, explanations."""

import csv
import io
import json

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO

import saccade
from saccade.building.build import build_model
from saccade.data.spec import InputSpec
from saccade.deployment.bundle import ExportError
from saccade.deployment.predictor import open_predictor
from saccade.deployment.writers import write_predictions
from saccade.runs.run import Run
from saccade.runs.scores import read_scores
from saccade.settings import ModelConfig
from saccade.tasks import Detect
from saccade.tasks.detection.detector import answer_gap
from saccade.tasks.detection.drawing import draw_objects, to_runs
from saccade.tasks.detection.errors import (
    DOUBLED,
    MISPLACED,
    NONE,
    NOTHING,
    OTHER_CLASS,
    RIGHT,
    SPARED,
    best_threshold,
    classify_errors,
    count_errors,
)
from saccade.tasks.detection.presenter import spread
from saccade.tasks.detection.runs import paint_runs, unpack_counts
from support.objects import make_objects
from support.serving import make_app, running

HEAD = "mask_rcnn:width=16,hidden=32,proposals=30,sampled=16"


def make_spec(outputs=("square", "disc"), side=64, **extra):
    return InputSpec(tuple(outputs), 3, side, [0.5] * 3, [0.5] * 3, task="detect", extra={"fit": True, **extra})


def make_rows(*objects, cells=0):
    """Rows as a detector's answers stand: boxes, scores, classes, masks that fill their boxes."""
    rows = np.full((len(objects), 6 + cells**2), 1.0, np.float32)
    for row, (box, score, label) in zip(rows, objects, strict=True):
        row[:6] = [*box, score, label]
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detect")
    data = make_objects(folder / "set", train=4)
    settings = {"model.head": HEAD, "keep.ema": None, "data.workers": 0, "augment.jitter": 0.1}
    run = saccade.train(
        str(data),
        task="detect:scale=[0.9,1.1],least=0.01",
        model="resnet10t",
        epochs=1,
        batch_size=2,
        img_size=64,
        out=folder / "run",
        device="cpu",
        settings=settings,
        quiet=True,
    )
    return data, run


def test_run_holds_scores_report_and_model(trained):
    _, run = trained
    assert run.metric == "mask_ap"
    scores = read_scores(Run(run.path).scores_file)
    assert scores.metrics["mask_ap"].combine(scores.columns) == pytest.approx(run.score)
    page = (run.path / "report.html").read_text()
    for words in (
        "Worst, typical and best images",
        "Errors",
        "Precision and recall",
        "Class by class",
        "By size",
    ):
        assert words in page


def test_predict_writes_coco_csv_lines_and_drawings(trained, tmp_path):
    data, run = trained
    bad = tmp_path / "bad.png"
    bad.write_text("none")
    asked = [data / "images" / "val", bad]

    def write(name, **more):
        predictions = saccade.predict(run.path, asked, keep=True)
        return write_predictions(predictions, out=tmp_path / name, **more)

    tally = write("p.json", form="coco", draw=tmp_path / "drawn")
    assert (tally.asked, tally.bad) == (3, 1)
    whole = json.loads((tmp_path / "p.json").read_text())
    assert [one["name"] for one in whole["categories"]] == ["square", "disc"]
    assert [(one["height"], one["width"]) for one in whole["images"]] == [(64, 64)] * 2
    assert whole["problems"][0]["file_name"] == str(bad)
    assert whole["annotations"]
    for one in whole["annotations"]:
        left, top, width, height = one["bbox"]
        assert 0 <= left <= left + width <= 64.01
        assert 0 <= top <= top + height <= 64.01
        assert paint_runs(unpack_counts(one["segmentation"]["counts"]), (64, 64)).shape == (64, 64)
    assert len(list((tmp_path / "drawn").iterdir())) == 2
    write("p.csv")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    named = [row for row in rows if row["class"]]
    assert len(named) == len(whole["annotations"])
    assert float(named[0]["right"]) - float(named[0]["left"]) == pytest.approx(
        whole["annotations"][0]["bbox"][2], abs=0.02
    )
    write("p.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert sum(len(line.get("objects", ())) for line in lines) == len(whole["annotations"])


def test_answers_can_be_read_by_cocos_own_tools(trained, tmp_path):
    data, run = trained
    write_predictions(saccade.predict(run.path, data / "images" / "val"), out=tmp_path / "p.json", form="coco")
    whole = COCO(str(tmp_path / "p.json"))
    found = whole.loadAnns(whole.getAnnIds())
    assert whole.annToMask(found[0]).shape == (64, 64)


def test_coco_of_a_task_without_boxes_is_refused(tmp_path):
    from saccade.deployment.predict import Predictions
    from saccade.tasks import Classify

    nothing = Predictions((one for one in ()), Classify, InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3))
    with pytest.raises(ValueError, match="needs boxes, which the task classify does not predict"):
        write_predictions(nothing, out=tmp_path / "p.json", form="coco")
    assert list(tmp_path.iterdir()) == []


def test_server_tells_objects_of_the_image_as_it_was_sent(trained):
    _, run = trained
    file = io.BytesIO()
    Image.new("RGB", (100, 40), (230, 60, 30)).save(file, "PNG")
    with running(make_app(open_predictor(run.path), explained=False)) as address:
        told = httpx.post(f"{address}/predict", files={"file": ("a.png", file.getvalue())}).json()
        assert httpx.get(f"{address}/page/objects.js").status_code == 200
    assert told["size"] == [40, 100]
    assert (told["outputs"], len(told["colours"])) == (["square", "disc"], 2)
    assert all(0 <= one["box"][0] <= one["box"][2] <= 100 and one["box"][3] <= 40 for one in told["objects"])


def test_answer_in_the_square_is_told_in_pixels_of_the_image():
    spec = make_spec()
    rows = make_rows(((0, 16, 32, 48), 0.9, 1), ((32, 16, 64, 32), 0.3, 0), cells=4)
    answer = Detect.presenter(spec).describe(Detect.codec(spec).unframe(rows, (100, 200)))
    first, second = answer.record["objects"]
    assert (first["class"], first["box"], answer.record["size"]) == ("disc", [0, 0, 100, 100], [100, 200])
    assert (second["class"], second["box"]) == ("square", [100, 0, 200, 50])
    assert 4800 < paint_runs(unpack_counts(second["segmentation"]["counts"]), (100, 200)).sum() <= 5000  # corners fade
    assert answer.text == "1 disc"
    assert (answer.rows[0][:2], answer.rows[1][:2]) == (
        ("disc", "1 sure, best 90.0%"),
        ("square", "perhaps, 30.0%"),
    )
    beside = make_rows(((0, 0, 64, 16), 0.9, 1), ((4, 50, 60, 64), 0.8, 1), ((0, 10, 32, 20), 0.7, 0), cells=4)
    (crossing,) = Detect.presenter(spec).describe(Detect.codec(spec).unframe(beside, (100, 200))).record["objects"]
    assert crossing["box"] == [0, 0, 100, 12.5]  # of the square, what is above 16 and below 48 is not of the image
    assert Detect.presenter(spec).describe(Detect.codec(spec).unframe(rows[:0], (100, 200))).text == "nothing sure"
    assert Detect.presenter(spec).table_rows(Detect.presenter(spec).describe(rows[:0])) == [[""] * 6]


@pytest.mark.parametrize(
    "extra", [{"overlap": "0.5"}, {"least": 2}, {"kept": 0}, {"kept": [5]}, {"overlap": float("nan")}]
)
def test_spec_by_which_no_answer_stands_is_refused(extra):
    with pytest.raises(ValueError, match=f"extra.{next(iter(extra))} must be a number"):
        Detect.check_spec(make_spec(**extra))


def test_mask_of_a_box_that_leaves_the_image_is_cut():
    runs = to_runs(np.ones((4, 4), np.float32), np.array([-10.0, 5, 10, 30]), (20, 40))
    mask = paint_runs(unpack_counts(runs), (20, 40))
    assert mask[8:, :8].all()
    assert mask[5:, :10].sum() == mask.sum() > 0.9 * 15 * 10
    assert not paint_runs(unpack_counts(to_runs(np.ones((4, 4)), np.array([50.0, 0, 60, 9]), (20, 40))), (20, 40)).any()


def test_objects_are_drawn_where_they_are():
    one = {"class": "disc", "box": [20, 20, 60, 60], "score": 0.5}
    drawn = draw_objects(np.zeros((100, 100, 3), np.uint8), [one], {"disc": "#ff0000"}, (100, 100), side=200)
    assert drawn.shape == (200, 200, 3)
    assert drawn[100, 40].tolist() == [255, 0, 0]  # the left edge
    assert not drawn[100, 80].any()  # the middle
    assert not drawn[150].any()


def test_name_of_several_lines_is_drawn_on_one():
    one = {"class": "a\n<b> " * 20, "box": [20, 20, 60, 60]}
    drawn = draw_objects(np.zeros((100, 100, 3), np.uint8), [one], {one["class"]: "#ff0000"}, (100, 100))
    assert drawn.any()


# Errors by kind

TRUTH = torch.tensor([[0, 0, 10, 10], [20, 0, 30, 10], [0, 20, 10, 30], [0, 0, 0, 0.0]])
CLASSES, CROWD = torch.tensor([0, 1, 0, -1]), torch.tensor([False, False, True, False])


def errors(*answers):
    boxes, scores, labels = (torch.tensor([one[part] for one in answers]) for part in range(3))
    kinds, found = classify_errors(boxes.float(), scores, labels, TRUTH, CLASSES, CROWD)
    return kinds.tolist(), found.tolist()


def test_errors_are_told_by_kind():
    kinds, found = errors(
        ([0, 0, 10, 9], 0.9, 0),  # right
        ([0, 0, 10, 8], 0.8, 0),  # the same object again
        ([20, 0, 30, 9], 0.7, 0),  # in the place of another class
        ([25, 0, 40, 10], 0.6, 1),  # a quarter of it
        ([50, 50, 60, 60], 0.5, 1),  # nothing
        ([1, 21, 9, 29], 0.4, 0),  # in a crowd of its class
        ([0, 0, 0, 0], 0.0, -1),
    )
    assert kinds == [RIGHT, DOUBLED, OTHER_CLASS, MISPLACED, NOTHING, SPARED, NONE]
    assert found == pytest.approx([0.9, 0, 0, 0])


def test_errors_above_a_score_do_not_depend_on_answers_below_it():
    answers = [([0, 0, 10, 8], 0.9, 0), ([0, 0, 10, 10], 0.3, 0)]
    assert errors(*answers)[0][:1] == errors(answers[0])[0]


def test_best_threshold_and_counts():
    rows = [
        [0, 0, 1, 1, score, 0, kind] for score, kind in ((0.9, RIGHT), (0.8, RIGHT), (0.3, NOTHING), (0.2, DOUBLED))
    ]
    answers = np.array([rows], np.float32)
    objects = np.array([[[0, 0.9, 5], [0, 0.8, 5], [1, 0, 5], [-1, 0, 0]]], np.float32)
    assert best_threshold(answers, objects) == pytest.approx(0.8)
    assert count_errors(answers, objects, 0.25) == {
        RIGHT: 2, MISPLACED: 0, OTHER_CLASS: 0, DOUBLED: 0, NOTHING: 1, NONE: 1
    }  # fmt: skip
    assert best_threshold(answers[:, 2:], objects) == 0.5


def test_spread_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).random((400, 1))
    low, high = spread(lambda some: float(some.mean()), values)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.5)
    assert low < values.mean() < high


# Inside of a detector


@pytest.mark.parametrize(("name", "view"), [("glnet_nano", "slots"), ("nommer_tiny", "nomination")])
def test_maps_of_context_are_shown_inside_a_detector(name, view):
    tiny = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "cnn_reduction": 2, "window_size": 4}
    spec, options = make_spec(side=64), tiny if name == "nommer_tiny" else {"depths": [1, 1, 1]}
    model = build_model(ModelConfig(name=name, head="retinanet:width=16", options=options), spec, seed=0).eval()
    image = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    sample = saccade.explain(model, [image], views=[view], shape=spec).samples[0]
    found = sample.views[0]
    assert sample.said.text == "nothing sure"  # of weights that have learned nothing
    assert found.absent is None
    assert any(figure.pixels is not None for figure in found.figures)


# As a graph


def test_order_of_nearly_equal_answers_says_nothing_of_how_far_they_lie_apart():
    first = make_rows(((0, 0, 10, 10), 0.9, 0), ((5, 5, 20, 20), 0.9, 1), ((1, 1, 2, 2), 0.01, 0))
    second = first[[1, 0, 2]] + np.array([0.001, 0, 0, 0, 0, 0], np.float32)
    second[2, :4] = 50  # never stands
    assert answer_gap(first[None], second[None], least=0.05) == pytest.approx(0.001, rel=1e-2)
    second[0, 2] += 3
    assert answer_gap(first[None], second[None], least=0.05) == pytest.approx(3, rel=1e-2)
    assert answer_gap(first[None], first[None, :1], least=0.05) == np.inf
    assert np.isnan(answer_gap(first[None] * np.nan, first[None], least=0.05))


@pytest.mark.parametrize("head", ["mask_rcnn", "cascade", "sparse_rcnn", "reppoints_v2"])
def test_graph_of_a_detector_that_looks_again_is_refused(head):
    options = "width=16,depth=1,groups=4" if head == "reppoints_v2" else "width=16,proposals=8"
    model = build_model(ModelConfig(name="resnet10t", head=f"{head}:{options}"), make_spec(), seed=0)
    assert "among detectors only retinanet and atss can be exported as graphs" in model.no_graph


def test_export_of_a_detector_that_looks_again_is_refused_before_anything_is_written(trained):
    _, run = trained
    with pytest.raises(ExportError, match="cannot be exported: its head is MaskRCNN"):
        saccade.export(run.path)
    assert not (run.path / "export").exists()
