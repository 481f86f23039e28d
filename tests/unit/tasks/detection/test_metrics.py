"""Average precision from records of images: the same as COCO's own code gives."""

from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as tools

from saccade.data.spec import InputSpec
from saccade.tasks.detection.boxes import areas
from saccade.tasks.detection.drawing import paste_masks
from saccade.tasks.detection.metrics import (
    OVERLAPS,
    DetectionMetrics,
    average_precision,
    average_recall,
    match_image,
)
from saccade.tasks.detection.regions import box_mask, paint_objects
from support.coco import coco_stats

SIDE, KEPT = 256, 40


def draw_set(seed: int, *, images: int = 40, classes: int = 3) -> list[dict[str, np.ndarray]]:
    """Draw objects and answers: right ones, moved, doubled, of the wrong class, and from nowhere."""
    draws = np.random.default_rng(seed)
    found = []
    for _ in range(images):
        count = int(draws.integers(0, 8))
        corner, side = draws.uniform(0, 120, (count, 2)), draws.uniform(6, 130, (count, 2))
        boxes = np.concatenate([corner, corner + side], 1).round()
        labels, crowd = draws.integers(0, classes, count), draws.uniform(size=count) < 0.15
        answers = [
            (
                boxes[place] + draws.normal(0, 5, 4),
                labels[place] if draws.uniform() < 0.8 else draws.integers(0, classes),
            )
            for place in range(count)
            for _ in range(int(draws.integers(0, 4)))
        ]
        answers += [(np.r_[low := draws.uniform(0, 120, 2), low + 30], draws.integers(0, classes)) for _ in range(3)]
        where = np.array([box for box, _ in answers])
        where[:, 2:] = np.maximum(where[:, 2:], where[:, :2] + 1)
        scores = np.sort(draws.uniform(0.01, 1, len(answers)))[::-1].astype(np.float32)
        kinds = np.array([kind for _, kind in answers])
        found.append(
            {"boxes": boxes, "labels": labels, "crowd": crowd, "where": where, "kinds": kinds, "scores": scores}
        )
    return found


def cells_of(place: int) -> torch.Tensor:
    """Return the chances within the box of an answer: a disc, or most of one."""
    across = torch.linspace(-1, 1, 28)
    disc = (across[:, None] ** 2 + across[None] ** 2 <= 1).float()
    disc[: 7 * (place % 3)] = 0.0
    return disc


def numbered(one: dict[str, np.ndarray]) -> np.ndarray:
    """Return the numbers of the objects that each pixel is of, in a layer for each object."""
    return paint_objects([None] * len(one["boxes"]), one["boxes"], (SIDE, SIDE), name="drawn", layers=8)


def records_of(drawn: list[dict[str, np.ndarray]], *, masks: bool = False) -> np.ndarray:
    """Return what the metric keeps of a set."""
    metrics = DetectionMetrics(InputSpec(("a", "b", "c"), 3, SIDE, [0.5] * 3, [0.5] * 3, extra={"masks": masks}))
    rows = []
    for one in drawn:
        answers = {
            "boxes": torch.zeros(1, KEPT, 4, dtype=torch.float64),
            "scores": torch.zeros(1, KEPT),
            "labels": torch.full((1, KEPT), -1),
            "masks": torch.stack([cells_of(place) for place in range(KEPT)])[None],
        }
        count = len(one["kinds"])
        answers["boxes"][0, :count] = torch.from_numpy(one["where"])
        answers["scores"][0, :count] = torch.from_numpy(one["scores"].copy())
        answers["labels"][0, :count] = torch.from_numpy(one["kinds"])
        batch = {
            "image": torch.zeros(1, 3, SIDE, SIDE),
            "size": torch.tensor([[SIDE, SIDE]]),
            "boxes": torch.zeros(1, 8, 4, dtype=torch.float64),
            "labels": torch.full((1, 8), -1),
            "crowd": torch.zeros(1, 8, dtype=torch.bool),
            "mask": torch.from_numpy(numbered(one))[None].to(torch.int16),
        }
        real = len(one["labels"])
        batch["boxes"][0, :real] = torch.from_numpy(one["boxes"])
        batch["labels"][0, :real] = torch.from_numpy(one["labels"])
        batch["crowd"][0, :real] = torch.from_numpy(one["crowd"])
        rows.append(metrics.measure(answers, batch)["mask_records" if masks else "records"])
    return torch.cat(rows).numpy()


def coco_numbers(drawn: list[dict[str, np.ndarray]], *, masks: bool = False) -> np.ndarray:
    """Return the twelve numbers of pycocotools; masks are given to it as runs."""
    truth = {"images": [], "annotations": [], "categories": [{"id": kind + 1, "name": str(kind)} for kind in range(3)]}
    answers = []

    def described(image: int, label: int, box: np.ndarray, pixels: np.ndarray | None) -> dict[str, Any]:
        wide, high = box[2] - box[0], box[3] - box[1]
        found = {"image_id": image, "category_id": int(label) + 1, "bbox": [box[0], box[1], wide, high]}
        if pixels is None:
            return found | {"area": wide * high}
        runs = tools.encode(np.asfortranarray(pixels.astype(np.uint8)))
        return {key: value for key, value in found.items() if key != "bbox"} | {
            "segmentation": runs,
            "area": float(pixels.sum()),
        }

    for image, one in enumerate(drawn):
        truth["images"].append({"id": image, "width": SIDE, "height": SIDE})
        for box, label, crowd in zip(one["boxes"], one["labels"], one["crowd"], strict=True):
            here = described(image, label, box, box_mask(box, (SIDE, SIDE)) if masks else None)
            truth["annotations"].append({**here, "id": len(truth["annotations"]) + 1, "iscrowd": int(crowd)})
        cells = torch.stack([cells_of(place) for place in range(len(one["kinds"]))])
        pasted = paste_masks(cells, torch.from_numpy(one["where"]), SIDE).numpy() if masks else []
        for place, (box, kind, score) in enumerate(zip(one["where"], one["kinds"], one["scores"], strict=True)):
            here = described(image, kind, box, pasted[place] if masks else None)
            answers.append({key: value for key, value in here.items() if key != "area"} | {"score": float(score)})
    return coco_stats(truth, answers, "segm" if masks else "bbox")


@pytest.mark.parametrize(("seed", "masks"), [(0, False), (1, False), (2, False), (0, True)])
def test_average_precision_equals_pycocotools(seed: int, masks: bool) -> None:
    drawn = draw_set(seed, images=12 if masks else 40)
    assert any(one["crowd"].any() for one in drawn)
    records, stats = records_of(drawn, masks=masks), coco_numbers(drawn, masks=masks)
    assert 0.02 < stats[0] < 0.98
    assert average_precision(records) == pytest.approx(stats[0], abs=1e-6)
    assert average_precision(records, overlaps=(0,)) == pytest.approx(stats[1], abs=1e-6)
    assert average_precision(records, overlaps=(5,)) == pytest.approx(stats[2], abs=1e-6)
    for size in (1, 2, 3):
        assert average_precision(records, size=size) == pytest.approx(stats[2 + size], abs=1e-6)
        assert average_recall(records, size=size) == pytest.approx(stats[8 + size], abs=1e-6)
    assert average_recall(records) == pytest.approx(stats[8], abs=1e-6)


def test_an_answer_takes_the_object_it_overlaps_most_and_a_second_one_finds_it_taken() -> None:
    shared = np.array([[0.9, 0.6], [0.8, 0.0], [0.55, 0.52]])
    hit, spared = match_image(
        shared, np.zeros(3, int), np.zeros(2, int), crowd=np.zeros(2, bool), outside=np.zeros((1, 2), bool)
    )
    assert hit[0, :, 0].tolist() == [True, False, True]  # the third takes what is left
    assert hit[0, :, 5].tolist() == [True, False, False]
    assert not spared.any()


def test_a_crowd_spares_every_answer_within_it_and_is_never_hit() -> None:
    hit, spared = match_image(
        np.array([[0.9], [0.8]]),
        np.zeros(2, int),
        np.zeros(1, int),
        crowd=np.ones(1, bool),
        outside=np.zeros((1, 1), bool),
    )
    assert not hit.any()
    assert spared[0, :, 0].all()


def test_a_set_without_objects_has_an_average_precision_of_zero() -> None:
    drawn = [dict(one, boxes=np.zeros((0, 4)), labels=np.zeros(0, int), crowd=np.zeros(0, bool)) for one in draw_set(0)]
    assert average_precision(records_of(drawn)) == 0.0


def test_overlaps_are_those_of_coco() -> None:
    assert np.allclose(OVERLAPS, np.linspace(0.5, 0.95, 10))
    assert areas(torch.tensor([[0.0, 0.0, 2.0, 3.0], [5.0, 5.0, 1.0, 9.0]])).tolist() == [6.0, 0.0]


def test_pixels_are_counted_exactly_in_half_precision_too() -> None:
    drawn = draw_set(5, images=2)
    with torch.autocast("cpu", torch.bfloat16):
        halved = records_of(drawn, masks=True)
    assert np.array_equal(halved, records_of(drawn, masks=True))
