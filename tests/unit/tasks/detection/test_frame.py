"""Metrics of detection are in the pixels of the original images: those that pycocotools gives for predicted files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import saccade
from saccade.comparison.conclude.evidence import read_evidence, same_samples
from saccade.data import frame
from saccade.data.frame import from_runs
from saccade.data.spec import InputSpec
from saccade.deployment.predict import Prediction, Predictions
from saccade.deployment.writers import write_predictions
from saccade.evaluation.opening import EvaluationError
from saccade.runs.run import RunError
from saccade.settings import DataConfig
from saccade.tasks import Detect
from saccade.tasks.detection import masks
from saccade.tasks.detection.errors import AREA
from saccade.tasks.detection.regions import to_mask
from saccade.tasks.detection.runs import pack_runs
from saccade.tasks.opening import open_samples
from support.coco import coco_stats
from support.frames import without_frame

SIZES = ((133, 61), (70, 121), (64, 64), (99, 100), (51, 40), (160, 45))  # width and height as shown
SIDE, CELLS = 64, 14
COLOURS = np.array([[230, 60, 30], [40, 90, 220]], dtype=np.uint8)
TURNED = 1  # this image is stored turned, and shown upright by its EXIF


def draw_objects(draws, size):
    """Return boxes and masks of objects that overlap: ellipses, and thin bars."""
    width, height = size
    down, across = np.mgrid[:height, :width] + 0.5
    found = []
    for number in range(5):
        wide, high = draws.integers(6, width // 2), (2 if number == 0 else draws.integers(6, height // 2))
        left, top = draws.integers(0, width - wide), draws.integers(0, height - high)
        x, y = (across - left) / wide * 2 - 1, (down - top) / high * 2 - 1
        mask = (x**2 + y**2 <= 1) if number else (abs(x) < 1) & (abs(y) < 1)
        found.append(([int(left), int(top), int(wide), int(high)], mask))
    return found


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A set of images of odd sizes, and its list."""
    root = tmp_path_factory.mktemp("frame")
    images, annotations = [], []
    for part in ("train", "val"):
        (root / "images" / part).mkdir(parents=True)
    for number, size in enumerate(SIZES):
        draws = np.random.default_rng(number)
        things = draw_objects(draws, size)
        pixels = draws.integers(0, 60, (size[1], size[0], 3)).astype(np.uint8)
        for place, (_, mask) in enumerate(things):
            pixels[mask] = COLOURS[place % 2]
        image, exif = Image.fromarray(pixels), Image.Exif()
        if number == TURNED:
            image, exif[0x0112] = image.transpose(Image.Transpose.ROTATE_90), 6
        name = f"images/val/{number}.jpg"
        image.save(root / name, exif=exif)
        image.save(root / name.replace("val", "train"), exif=exif)
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        for place, (box, mask) in enumerate(things):
            runs = {"size": list(mask.shape), "counts": pack_runs(mask)}
            one = {"id": len(annotations) + 1, "image_id": number, "category_id": place % 2 + 1, "bbox": box}
            annotations.append(one | {"iscrowd": int(place == 3), "segmentation": runs, "area": int(mask.sum())})
    whole = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    }
    (root / "val.json").write_text(json.dumps(whole))
    (root / "train.json").write_text(json.dumps(whole).replace("images/val", "images/train"))
    return root, whole


def make_spec(**extra):
    extra = {"fit": True, "masks": True, "least": 0.05, "overlap": 0.5, "kept": 30, **extra}
    return InputSpec(("a", "b"), 3, SIDE, [0.5] * 3, [0.5] * 3, task="detect", extra=extra)


def answer(batch):
    """Return raw outputs in the square: objects moved, doubled and of the wrong class, and some beyond the image."""
    draws = torch.Generator().manual_seed(0)
    rows = torch.zeros(len(batch["labels"]), 24, 6 + CELLS**2)
    rows[..., 5] = -1
    across = torch.linspace(-1, 1, CELLS)
    disc = (1.6 - across[:, None] ** 2 - across[None] ** 2).clamp(0, 1).flatten()
    for place, labels in enumerate(batch["labels"]):
        for number in range(15):
            kind = number % 5
            rows[place, number, :4] = batch["boxes"][place, kind] + torch.randn(4, generator=draws) * (number // 5)
            rows[place, number, 5] = labels[kind] if number != 7 else 1 - labels[kind]
            rows[place, number, 6:] = disc if kind else 1.0
        rows[place, 15, :4], rows[place, 15, 5] = torch.tensor([1.0, 1, 9, 9]), 0  # often in the padding
        rows[place, 16, :4], rows[place, 16, 5] = torch.tensor([40.0, -20, 90, 60]), 1
        rows[place, 15:17, 6:] = disc
        rows[place, :17, 4] = torch.rand(17, generator=draws) * 0.9 + 0.1
        rows[place, :, :4] = torch.cat(
            [rows[place, :, :2], torch.maximum(rows[place, :, 2:4], rows[place, :, :2] + 1)], 1
        )
    return rows


def read_batch(root, spec):
    _, data = open_samples("detect", DataConfig(path=str(root)))
    encode = Detect.codec(spec).encoder()
    batch = encode.collate([encode(data.val.sample(place)) for place in range(len(data.val))])
    return [data.val.name(place) for place in range(len(data.val))], batch | {"place": torch.arange(len(data.val))}


def measure(spec, batch, output):
    task = Detect.build(nn.Identity(), spec)
    metrics = task.metrics(spec)
    for some in torch.arange(len(output)).split(4):
        part = {name: value[some] for name, value in batch.items()}
        metrics.update(task.read(output[some], part), part)
    return metrics


def compare_with_file(predictions, folder, whole, numbers):
    """Compare metrics with pycocotools' of a file of predictions; return its average precision of masks."""
    write_predictions(predictions, out=folder / "p.json", form="coco")
    written = json.loads((folder / "p.json").read_text())
    ids = {Path(one["file_name"]).name: one["id"] for one in whole["images"]}
    known = {one["id"]: ids[Path(one["file_name"]).name] for one in written["images"]}
    said = [{**one, "image_id": known[one["image_id"]]} for one in written["annotations"]]
    for start, kind, other in (("", "bbox", "segmentation"), ("mask_", "segm", "bbox")):
        stats = coco_stats(whole, [{k: v for k, v in one.items() if k != other} for one in said], kind)
        for place, name in enumerate(("ap", "ap50", "ap75", "ap_small", "ap_medium")):
            want = max(stats[place], 0.0)  # pycocotools gives -1 where there are no objects of a size
            assert numbers[f"{start}{name}"] == pytest.approx(want, abs=1e-3), f"{start}{name}"
        assert numbers[f"{start}ar"] == pytest.approx(stats[8], abs=1e-3)
    return stats[0]


@pytest.fixture(scope="module")
def trained(drawn, tmp_path_factory):
    settings = {
        "model.head": "mask_rcnn:width=16,hidden=32,sampled=32,proposals=50",
        "keep.ema": None,
        "data.workers": 0,
        "schedule.warmup": 0,
        "keep.evaluate_every": 100,
        "augment.flip": 0.0,
        "augment.jitter": 0.0,
    }
    return saccade.train(
        str(drawn[0]), task="detect:least=0.01", model="resnet10t", epochs=60, batch_size=2, lr=3e-3, img_size=SIDE,
        out=tmp_path_factory.mktemp("trained") / "run", device="cpu", settings=settings, quiet=True,
    )  # fmt: skip


def test_metrics_of_a_run_are_those_of_its_predicted_file(drawn, trained, tmp_path):
    (root, whole), run = drawn, trained
    numbers = {name.removeprefix("val_"): value for name, value in run.metrics.items()}
    assert compare_with_file(saccade.predict(run.path, root / "images" / "val"), tmp_path, whole, numbers) > 0.005
    assert saccade.evaluate(run.path, quiet=True).metrics()["mask_ap"] == pytest.approx(numbers["mask_ap"])


def test_runs_of_different_frames_are_not_evaluated_or_compared_together(trained, tmp_path):
    earlier = without_frame(trained.path, tmp_path)
    with pytest.raises(EvaluationError, match="count pixels of the model's square, as earlier versions did"):
        saccade.evaluate([earlier, trained.path], quiet=True)
    arms = {name: read_evidence({0: path}) for name, path in (("base", earlier), ("other", trained.path))}
    with pytest.raises(RunError, match="runs of base count pixels of the model's square"):
        same_samples(arms)


@pytest.mark.parametrize("extra", [{}, {"longest": 100}], ids=["square", "sides"])
def test_average_precision_is_that_of_the_predicted_file(drawn, extra, tmp_path, monkeypatch):
    root, whole = drawn
    spec = make_spec(frame="image", **extra)
    names, batch = read_batch(root, spec)
    output = answer(batch)
    found = measure(spec, batch, output)
    numbers = found.compute()

    codec, presenter = Detect.codec(spec), Detect.presenter(spec)
    sizes = {one["file_name"]: (one["height"], one["width"]) for one in whole["images"]}
    rows = codec.read_output(output.numpy())
    answers = (
        Prediction(name, presenter.describe(codec.unframe(row, sizes[name])))
        for name, row in zip(names, rows, strict=True)
    )
    by_mask = compare_with_file(Predictions(answers, Detect, spec), tmp_path, whole, numbers)
    assert 0.2 < by_mask < 0.9

    square = measure(make_spec(), batch, output).compute()  # as earlier versions counted
    assert abs(square["mask_ap"] - by_mask) > 0.01

    monkeypatch.setattr(masks, "inside_boxes", masks.in_strips)  # as on a GPU
    monkeypatch.setattr(frame, "PIXELS", 20 * 5 * 150)  # some rows at a time
    assert measure(spec, batch, output).compute() == pytest.approx(numbers, abs=1e-3)


def test_pages_show_boxes_and_areas_of_the_original_images(drawn):
    root, whole = drawn
    spec = make_spec(frame="image")
    _, batch = read_batch(root, spec)
    kept = measure(spec, batch, answer(batch)).predictions()
    assert kept["side"].tolist() == [0]  # no square to map them from
    areas = [one["area"] for one in whole["annotations"]]
    assert kept["objects"][:, :5, AREA].flatten().tolist() == areas
    assert kept["answers"][0, :, 2].max() > SIDE


def test_annotations_come_back_at_their_own_size(drawn):
    root, whole = drawn
    _, batch = read_batch(root, make_spec(frame="image"))
    assert batch["size"].tolist() == [[height, width] for width, height in SIZES]
    for one in whole["annotations"]:
        place, number = one["image_id"], (one["id"] - 1) % 5
        left, top, wide, high = one["bbox"]
        assert batch["own_boxes"][place, number].tolist() == [left, top, left + wide, top + high]
        size = tuple(batch["size"][place].tolist())
        values, runs = (batch[name][place : place + 1] for name in ("mask_values", "mask_runs"))
        layers = int(runs.sum()) // (size[0] * size[1])
        maps = from_runs(values, runs, (layers, *size))[0]
        assert np.array_equal((maps == number + 1).any(0).numpy(), to_mask(one["segmentation"], size))
