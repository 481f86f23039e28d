"""Answers and metrics of segmentation are in the pixels of the original images."""

import json
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import confusion_matrix

import saccade
from saccade.comparison.conclude import evidence
from saccade.comparison.conclude.evidence import read_evidence, same_samples
from saccade.comparison.plan.folds import FoldAssignment, FoldRun
from saccade.data import frame
from saccade.data.cache import encoded_bytes
from saccade.data.frame import by_size, from_runs, pad_runs, to_runs
from saccade.data.spec import InputSpec
from saccade.deployment.judge import measure
from saccade.deployment.predictor import open_predictor
from saccade.deployment.verify import gather
from saccade.deployment.writers import write_predictions
from saccade.evaluation.opening import EvaluationError
from saccade.runs.run import Run, RunError
from saccade.runs.state import State
from saccade.settings import DataConfig
from saccade.tasks import Segment
from saccade.tasks.opening import open_samples
from saccade.tasks.segmentation import testing
from saccade.tasks.segmentation.metrics import borders, confusions, mean_iou
from saccade.training.restore import RestorableStep
from support.frames import without_frame
from support.mask_sets import make_odd_set

SIZES = ((61, 37), (40, 90), (33, 33), (57, 128))  # width and height; the square's side is 32
SIDE = 32


@pytest.mark.parametrize("size", [(33, 61), (7, 200), (101, 99), (20, 20), (1, 45)])
def test_classes_are_those_of_scores_resized_to_the_image(size, monkeypatch):
    side, (height, width) = 45, size
    scale = side / max(size)
    high, wide = round(height * scale), round(width * scale)
    top, left = (side - high) // 2, (side - wide) // 2
    scores = torch.randn(2, 5, side, side, generator=torch.Generator().manual_seed(0))
    inside = scores[:, :, top : top + high, left : left + wide]
    want = F.interpolate(inside, size, mode="bilinear", align_corners=False).argmax(1)
    found = testing.own_classes(scores, size)
    assert found.shape == (2, height, width)
    assert (found == want).float().mean() > 0.9999  # but for scores that are equal to the last digit
    monkeypatch.setattr(testing, "SCORES", 3 * 2 * 5 * width)  # three rows at a time
    assert torch.equal(testing.own_classes(scores, size), found)


def test_runs_hold_masks_of_any_size():
    masks = [np.array([[0, 0, 3], [3, 3, -1]]), np.array([[7, 7, 7], [7, 7, 7]]), np.arange(6).reshape(2, 3)]
    runs = [dict(zip(("mask_values", "mask_runs"), to_runs(mask), strict=True)) for mask in masks]
    assert runs[0]["mask_values"].tolist() == [0, 3, -1]
    assert runs[0]["mask_runs"].tolist() == [2, 3, 1]
    padded = pad_runs(runs)
    values, lengths = (torch.stack([one[name] for one in padded]) for name in ("mask_values", "mask_runs"))
    assert values.shape == (3, 6)
    assert np.array_equal(from_runs(values, lengths, (2, 3)).numpy(), np.stack(masks))


def test_images_are_grouped_by_size_and_bounded(monkeypatch):
    monkeypatch.setattr(frame, "PIXELS", 2 * 12)
    sizes = torch.tensor([[3, 4], [5, 9], [3, 4], [4, 3], [3, 4]])
    found = [(size, places.tolist()) for size, places in by_size(sizes)]
    assert found == [((3, 4), [0, 2]), ((3, 4), [4]), ((5, 9), [1]), ((4, 3), [3])]


def test_memory_for_validation_images_counts_their_masks_and_runs(tmp_path):
    _, data = open_samples("segment", DataConfig(path=str(make_odd_set(tmp_path, SIZES))))
    spec = InputSpec(
        ("a", "b", "c"), 3, SIDE, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, "frame": "image"}
    )
    encode = Segment.codec(spec).encoder()
    sizes = [sum(part.nbytes for part in encode(data.val.sample(place)).values()) for place in range(4)]
    assert encoded_bytes(data.val, encode) == sum(sizes) > 4 * (3 + 2) * SIDE**2


@pytest.mark.parametrize("rows", [1, 5, 31, 1000])
def test_borders_are_what_is_near_another_class_or_the_edge(rows, monkeypatch):
    monkeypatch.setattr(frame, "PIXELS", rows * 2 * 119)
    draws = np.random.default_rng(0)
    answer, truth = (draws.integers(0, 3, (2, 12, 17)).repeat(6, 1).repeat(7, 2) for _ in range(2))
    truth[:, 30:40, 20:60] = -1
    reach = round(0.02 * np.hypot(*truth.shape[1:]))

    def border(mask):
        padded = np.pad(mask, reach)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * reach + 1, 2 * reach + 1))
        return mask & ~windows.all((2, 3))

    found = borders(torch.from_numpy(answer), torch.from_numpy(truth), 3).numpy()
    for place in range(2):
        for label in range(3):
            mine, real = ((one[place] == label) & (truth[place] >= 0) for one in (answer, truth))
            first, second = border(mine), border(real)
            assert found[place, :, label].tolist() == [(first & second).sum(), (first | second).sum()]


def test_confusions_count_pixels_in_strips_too(monkeypatch):
    draws = np.random.default_rng(0)
    answer, truth = draws.integers(0, 4, (3, 20, 30)), draws.integers(-1, 4, (3, 20, 30))
    monkeypatch.setattr(frame, "PIXELS", 3 * 30 * 7)
    found = confusions(torch.from_numpy(answer), torch.from_numpy(truth), 4)
    for one, mine, real in zip(found, answer, truth, strict=True):
        counted = real >= 0
        assert np.array_equal(one, confusion_matrix(real[counted], mine[counted], labels=range(4)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frame")
    data = make_odd_set(folder / "set", SIZES)
    settings = {"model.head": "fpn:width=16,inner=32", "keep.ema": None, "data.workers": 0, "optim.lr": 0.02}
    settings["keep.evaluate_every"] = 15
    run = saccade.train(
        str(data), task="segment", model="resnet10t", epochs=15, batch_size=3, img_size=SIDE,
        out=folder / "run", device="cpu", settings=settings, quiet=True,
    )  # fmt: skip
    return data, run


def by_sklearn(data, masks):
    """Return the confusion of written masks and annotations at their own size."""
    total = np.zeros((3, 3), np.int64)
    for file in sorted((data / "masks" / "val").iterdir()):
        truth, answer = (np.array(Image.open(one)) for one in (file, masks / file.name))
        assert truth.shape == answer.shape
        total += confusion_matrix(truth[truth != 255], answer[truth != 255], labels=range(3))
    return total


def test_metrics_are_those_of_the_written_masks(trained, tmp_path):
    data, run = trained
    write_predictions(
        saccade.predict(run.path, data / "images" / "val"), out=tmp_path / "p.jsonl", masks=tmp_path / "masks"
    )
    confusion = by_sklearn(data, tmp_path / "masks")
    right, true, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    ious = (right / (true + said - right))[true + said > 0]
    kept = Run(run.path).predictions()
    assert np.abs(kept["confusion"].sum(0).numpy() - confusion).sum() <= 4  # pixels with equal scores
    assert run.score == pytest.approx(ious.mean(), abs=1e-3)
    assert run.aacc == pytest.approx(right.sum() / true.sum(), abs=1e-3)
    assert saccade.evaluate(run.path, quiet=True).metrics()["miou"] == run.score
    assert (ious > 0).sum() > 1  # it has learnt something


def test_square_would_count_other_pixels(trained):
    _, run = trained
    counts = Run(run.path).scores().columns["counts"]
    want = [width * height - 7 * min(20, width) for width, height in SIZES]
    assert counts[:, 1].sum(1).tolist() == want
    assert max(want) > SIDE**2


def test_records_say_their_frame(trained):
    _, run = trained
    assert json.loads((run.path / "summary.json").read_text())["validation"]["frame"] == "image"
    assert Run(run.path).scores().own_frame
    assert saccade.evaluate(run.path, quiet=True).to_dict()["runs"][0]["frame"] == "image"
    assert "pixels of the original images" in (run.path / "report.html").read_text()


def test_exports_are_judged_in_the_same_frame(trained):
    _, run = trained
    predictor = open_predictor(run.path)
    found = measure(predictor.outputs, gather(run.path, predictor.spec), predictor.spec)
    assert found.value == pytest.approx(run.score, abs=1e-3)


def test_explained_answer_covers_the_image_without_padding(trained):
    data, run = trained
    image = data / "images" / "val" / "3.jpg"
    (known,) = saccade.predict(run.path, image)
    (sample,) = saccade.explain(run.path, [image]).samples
    assert [(name, share) for name, _, share in known.answer.rows] == sample.answer


@pytest.fixture(scope="module")
def earlier(trained, tmp_path_factory):
    """The run as an earlier version left it, which counted in the square."""
    return without_frame(trained[1].path, tmp_path_factory.mktemp("earlier"))


def test_run_of_an_earlier_version_is_measured_as_it_was(trained, earlier):
    found = saccade.evaluate(earlier, quiet=True)
    assert found.to_dict()["runs"][0]["frame"] is None
    assert found.metrics()["miou"] != trained[1].score
    with pytest.raises(EvaluationError, match="count pixels of the model's square, as earlier versions did"):
        saccade.evaluate([earlier, trained[1].path], quiet=True)
    arms = {name: read_evidence({0: path}) for name, path in (("base", earlier), ("other", trained[1].path))}
    with pytest.raises(RunError, match="runs of base count pixels of the model's square"):
        same_samples(arms)


def test_run_of_an_earlier_version_counts_pixels_of_the_images_where_it_is_tested_with_a_longest_side(trained, earlier):
    task = "segment:longest=96"
    found, want = (saccade.evaluate(path, task=task, quiet=True) for path in (earlier, trained[1].path))
    assert found.to_dict()["runs"][0]["frame"] == "image"
    assert found.metrics()["miou"] == want.metrics()["miou"]


def test_resumed_run_of_an_earlier_version_keeps_its_frame_and_says_so():
    said: list[str] = []
    for frames, left in (({}, 1), ({"extra.frame": "digest"}, 0), ({}, 0)):
        spec = InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3, extra={"frame": "image"} if frames or left else {})
        parts = SimpleNamespace(spec=spec, identity={"spec": {"extra.frame": "digest"}})
        step = SimpleNamespace(parts=parts, run=SimpleNamespace(path="RUN"), console=SimpleNamespace(say=said.append))
        RestorableStep._keep_frame(step, {"spec": frames})
        assert ("frame" in spec.extra) is bool(frames)
        assert len(said) == 1
    assert said[0].startswith("RUN was started by an earlier version: its metrics still count pixels of the model's")


@pytest.fixture(scope="module")
def compared(trained, tmp_path_factory):
    """A comparison of two seeds, whose finished runs are as an earlier version left it."""
    folder = tmp_path_factory.mktemp("compared")
    settings = {"model.head": "fpn:width=16,inner=32", "data.workers": 0, "schedule.epochs": 1, "optim.batch_size": 3}
    given = {"task": "segment", "model": "resnet10t", "img_size": SIDE, "device": "cpu", "settings": settings}
    given |= {"arms": ["base", "model.drop_path=0.1"], "out": folder / "out", "quiet": True}
    saccade.compare(str(trained[0]), seeds=2, **given)
    for number, run in enumerate(sorted((folder / "out" / "runs").glob("*/seed-*"))):
        (folder / str(number)).mkdir()
        earlier = without_frame(run, folder / str(number))
        shutil.rmtree(run)
        shutil.move(earlier, run)
    return str(trained[0]), given


def test_comparison_of_an_earlier_version_is_not_continued_in_another_frame(compared):
    data, given = compared
    runs = given["out"] / "runs"
    before = sorted(runs.glob("*/seed-*"))
    found = saccade.compare(data, seeds=2, **given)  # nothing to train: all count in the square
    assert [sorted(arm.seeds) for arm in found.arms] == [[0, 1], [0, 1]]
    with pytest.raises(RunError, match=r"runs of .* count pixels of the model's square.* start again in another"):
        saccade.compare(data, seeds=3, **given)
    assert sorted(runs.glob("*/seed-*")) == before  # refused before anything was trained


@pytest.mark.parametrize(("spec", "refused"), [({}, True), ({"extra.frame": "digest"}, False)])
def test_begun_runs_count_in_the_frame_that_they_will_keep(tmp_path, monkeypatch, spec, refused):
    state = SimpleNamespace(record={"data": {"spec": spec}})
    monkeypatch.setattr(
        evidence, "load_state", lambda folder: state if folder.parent.name == "begun" else State({}, {}, [])
    )
    with pytest.raises(RunError, match="runs of a count pixels") if refused else nullcontext():
        evidence.refuse_frames_of({tmp_path / "begun": ("a", True), tmp_path / "new": ("b", True)})


def test_folds_of_different_frames_are_not_joined(trained, earlier):
    folds = FoldAssignment(2, (np.array([0, 1] * 4),), None, "digest")
    runs = {0: [(FoldRun(0, 0, 0, 0), earlier), (FoldRun(0, 0, 0, 1), trained[1].path)]}
    with pytest.raises(RunError, match="runs of some folds count pixels of the model's square"):
        folds.join(runs)


def test_unknown_frame_is_refused():
    spec = InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, "frame": "tile"})
    with pytest.raises(ValueError, match=r"extra\.frame = 'tile'"):
        Segment.check_spec(spec)


def test_mean_iou_of_hand_made_counts():
    counts = np.array([[[3, 0, 1], [4, 2, 1], [4, 0, 3]]])  # correct, true, predicted
    assert mean_iou(counts) == pytest.approx((3 / 5 + 0 / 2 + 1 / 3) / 3)
