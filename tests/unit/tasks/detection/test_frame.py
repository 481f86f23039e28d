"""Metrics of detection are in the pixels of the original images: those that pycocotools gives for predicted files."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from saccade.data.frame import from_runs
from saccade.data.spec import InputSpec
from saccade.deployment.predict import Prediction, Predictions
from saccade.deployment.writers import write_predictions
from saccade.settings import DataConfig
from saccade.tasks import Detect
from saccade.tasks.detection import masks
from saccade.tasks.detection.errors import AREA
from saccade.tasks.detection.regions import to_mask
from saccade.tasks.detection.runs import pack_runs
from saccade.tasks.opening import open_samples
from support.coco import coco_stats

SIZES = ((133, 61), (70, 121), (64, 64), (99, 100), (51, 40), (160, 45))  # width and height as shown
SIDE, CELLS = 64, 14
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
        image, exif = Image.fromarray(draws.integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)), Image.Exif()
        if number == TURNED:
            image, exif[0x0112] = image.transpose(Image.Transpose.ROTATE_90), 6
        name = f"images/val/{number}.jpg"
        image.save(root / name, exif=exif)
        image.save(root / name.replace("val", "train"), exif=exif)
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        for place, (box, mask) in enumerate(draw_objects(draws, size)):
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


def test_average_precision_is_that_of_the_predicted_file(drawn, tmp_path, monkeypatch):
    root, whole = drawn
    spec = make_spec(frame="image")
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
    write_predictions(Predictions(answers, Detect, spec), out=tmp_path / "p.json", form="coco")
    written = json.loads((tmp_path / "p.json").read_text())
    ids = {one["file_name"]: one["id"] for one in whole["images"]}
    known = {one["id"]: ids[one["file_name"]] for one in written["images"]}
    said = [{**one, "image_id": known[one["image_id"]]} for one in written["annotations"]]
    by_mask = coco_stats(whole, [{k: v for k, v in one.items() if k != "bbox"} for one in said], "segm")
    boxes = [one | {"area": one["bbox"][2] * one["bbox"][3]} for one in whole["annotations"]]
    by_box = coco_stats(
        whole | {"annotations": boxes}, [{k: v for k, v in one.items() if k != "segmentation"} for one in said], "bbox"
    )
    assert 0.2 < by_mask[0] < 0.9
    for start, stats in (("", by_box), ("mask_", by_mask)):
        for place, name in enumerate(("ap", "ap50", "ap75", "ap_small", "ap_medium")):
            assert numbers[f"{start}{name}"] == pytest.approx(stats[place], abs=1e-3), f"{start}{name}"
        assert numbers[f"{start}ar"] == pytest.approx(stats[8], abs=1e-3)

    square = measure(make_spec(), batch, output).compute()  # as earlier versions counted
    assert abs(square["mask_ap"] - by_mask[0]) > 0.01

    monkeypatch.setattr(masks, "inside_boxes", masks.in_strips)  # as on a GPU
    monkeypatch.setattr(masks, "PIXELS", 20 * 5 * 150)  # some rows at a time
    assert measure(spec, batch, output).compute() == pytest.approx(numbers, abs=1e-3)


def test_pages_show_boxes_and_areas_of_the_original_images(drawn):
    root, whole = drawn
    spec = make_spec(frame="image")
    _, batch = read_batch(root, spec)
    kept = measure(spec, batch, answer(batch)).predictions()
    assert kept["side"].tolist() == [0]  # no square to map them from
    areas = [one["bbox"][2] * one["bbox"][3] for one in whole["annotations"]]
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
