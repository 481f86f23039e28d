"""Presenter of detection: drawn objects; images, curves, classes, sizes and errors of a run."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...data.frame import own_boxes
from ...report.chart import line_chart
from ...report.markup import join, shorten
from ...report.page import Section, paragraph, table
from ...report.rows import Interval, share_chart
from ...support.wording import count_of
from ..answer import Answer
from ..metric import MetricSpec
from ..page import COMPARED, Shown, compared_section, no_images
from ..presenter import Presenter
from ..segmentation.drawing import name_colours
from .data import BoxTargets
from .detector import CELLS, LABEL, SCORE, WHOLE
from .drawing import draw_objects, to_runs
from .errors import FOUND, KIND, KINDS, NONE, RIGHT, best_threshold, count_errors
from .metrics import RANGES, average_precision, class_curves

GROUPS = 20  # groups of the jackknife
MANY = 60  # most classes in a chart
CURVES = 6  # most classes with separate curves
LARGE = 1000  # images above which only the first metric gets an interval
SIDE = 280  # side of images on the page
SURE = 0.5  # least score of shown objects
SIZED = {"small": "under 32 x 32 pixels", "medium": "up to 96 x 96", "large": "above"}


class DetectionPresenter(Presenter):
    """Presents objects."""

    outputs_key = "classes"
    boxes = True
    note = (
        "Average precision is COCO's: the mean over IoU thresholds from 50% to 95%, recalls, and classes that have "
        "objects. Intervals are over validation images, by leaving some of them out; they say nothing about other "
        "seeds."
    )

    def remark(self, shown: Shown, spec: MetricSpec) -> str | None:
        """Return the interval of a metric over all objects; for many images only that of the first metric."""
        if spec.name.removeprefix("mask_").startswith("ap_"):
            return None
        records = shown.scores.get(spec.column)
        if records is None or spec.statistic is None or (len(records) >= LARGE and spec is not shown.metrics[0]):
            return ""
        low, high = spread(spec.statistic, records)
        return f"95% interval {spec.show(low)} to {spec.show(high)}" if np.isfinite(low) else ""

    def sections(self, shown: Shown) -> list[Section]:
        """Return sections on images, errors, curves, classes and sizes."""
        if "answers" not in shown.predictions or _column(shown) not in shown.scores:
            return []
        parts = (_image_section, _error_section, _curve_section, _class_section, _size_section)
        return [part(shown) for part in parts]

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return whether confident objects have equal classes and nearly equal boxes."""
        found = []
        for a, b in zip(first, second, strict=True):
            mine, theirs = a[a[:, SCORE] >= SURE], b[b[:, SCORE] >= SURE]
            alike = len(mine) == len(theirs) and np.array_equal(mine[:, LABEL], theirs[:, LABEL])
            found.append(alike and (not len(mine) or float(np.abs(mine[:, :4] - theirs[:, :4]).max()) < 1.0))
        return np.array(found)

    def describe(self, row: np.ndarray, *, top: int = 5) -> Answer:
        """Return confident objects: counts by class, and boxes."""
        whole = row[row[:, LABEL] == WHOLE]
        size = (int(whole[0, 3]), int(whole[0, 2])) if len(whole) else (self.spec.img_size, self.spec.img_size)
        objects = [_object(one, size, self.spec.outputs) for one in row if one[LABEL] >= 0]
        best: dict[str, float] = {}
        for one in objects:
            best.setdefault(one["class"], one["score"])  # objects are sorted by score
        counts = Counter(one["class"] for one in objects if one["score"] >= SURE)
        rows = tuple(
            (name, f"{counts[name]} sure, best {score:.1%}" if counts[name] else f"perhaps, {score:.1%}", score)
            for name, score in list(best.items())[:top]
        )
        text = ", ".join(f"{counts[name]} {name}" for name in best if counts[name]) or "nothing sure"
        record = {"answer": text, "size": list(size), "objects": objects, "outputs": list(self.spec.outputs)}
        return Answer(text, rows, record, said=tuple(counts), colours=name_colours(self.spec.outputs))

    def table_head(self, *, top: int = 5) -> list[str]:
        """Return columns for class, score and box."""
        return ["class", "score", "left", "top", "right", "bottom"]

    def table_rows(self, answer: Answer, *, top: int = 5) -> list[list[str | float]]:
        """Return a row for each object, best first; one empty row without objects."""
        found = [[one["class"], one["score"], *one["box"]] for one in answer.record["objects"]]
        return found or [[""] * len(self.table_head(top=top))]

    def paint(self, pixels: np.ndarray, answer: Answer) -> np.ndarray:
        """Draw confident objects on an image."""
        sure = [one for one in answer.record["objects"] if one["score"] >= SURE]
        height, width = answer.record["size"]
        return draw_objects(pixels, sure, answer.colours, (height, width))

    def served_record(self, answer: Answer) -> dict[str, Any]:
        """Return the objects, and class colours for the page."""
        return answer.record | {"colours": [answer.colours[name] for name in answer.record["outputs"]], "sure": SURE}


def _column(shown: Shown) -> str:
    return "mask_records" if "mask_records" in shown.scores else "records"


def spread(statistic: Callable[[np.ndarray], float], records: np.ndarray) -> tuple[float, float]:
    """Return the 95% interval of a statistic over images, by a grouped jackknife."""
    groups = min(GROUPS, len(records))
    if groups < 3:
        return float("nan"), float("nan")
    group = np.random.default_rng(0).permutation(np.arange(len(records)) % groups)
    found = np.array([statistic(records[group != one]) for one in range(groups)])
    half = 2.1 * float(
        np.sqrt((groups - 1) / groups * ((found - found.mean()) ** 2).sum())
    )  # Student's t with 19 degrees of freedom
    value = statistic(records)
    return max(value - half, 0.0), min(value + half, 1.0)


def _image_section(shown: Shown) -> Section:
    kept = shown.predictions
    targets = None if shown.source is None else shown.source.targets
    if not shown.same_samples or not isinstance(targets, BoxTargets):
        return no_images(shown, COMPARED)
    least = best_threshold(kept["answers"], kept["objects"])
    colours = name_colours(shown.outputs)

    def draw(number: int, place: int, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = (pixels.shape[0], pixels.shape[1])
        masks = kept["masks"][number] if "masks" in kept else None
        rows = kept["answers"][kept["shown"][number]]
        answer = _answers(rows, masks, size, shown.outputs, least=least, side=int(kept["side"][0]))
        truth = _truth(targets, place, shown.outputs)
        return draw_objects(pixels, truth, colours, size, side=SIDE), draw_objects(
            pixels, answer, colours, size, side=SIDE
        )

    about = paragraph(
        f"Ground truth on the left; on the right, predictions with a confidence of at least {least:.0%}, the "
        "threshold with the best F1. Images with wrong annotations are often among the worst: check them before "
        "blaming the model."
    )
    measure = ("average precision", "ap")
    return compared_section(shown, draw, about=about, measure=measure, side=SIDE, style="pictures beside")


def _truth(targets: BoxTargets, place: int, outputs: Sequence[str]) -> list[dict[str, Any]]:
    here = targets.objects(place)
    found: list[dict[str, Any]] = [
        {"class": outputs[label], "box": box.tolist()}
        for box, label in zip(targets.boxes[here], targets.labels[here], strict=True)
    ]
    for one, region in zip(found, targets.regions[here] if targets.regions is not None else (), strict=False):
        one |= {"segmentation": region} if region is not None else {}
    return found


def _answers(
    rows: np.ndarray,
    masks: np.ndarray | None,
    size: tuple[int, int],
    outputs: Sequence[str],
    *,
    least: float,
    side: int,
) -> list[dict[str, Any]]:
    """Return the objects of an image in its pixels; those of earlier versions are in a square of the given side."""
    boxes = own_boxes(torch.from_numpy(rows[:, :4]), size, (side, side)).numpy() if side else rows[:, :4]
    found = []
    for place, row in enumerate(rows):
        if row[KIND] == NONE or row[4] < least:
            continue
        box = boxes[place]
        inside = box.clip(0, [size[1], size[0]] * 2).tolist()
        one = {"class": outputs[int(row[5])], "score": float(row[4]), "box": inside}
        if masks is not None and place < len(masks):
            runs = to_runs(masks[place].astype(np.float32) / 255, box, size)
            one["segmentation"] = {"size": list(size), "counts": runs}
        found.append(one)
    return found


def _error_section(shown: Shown) -> Section:
    answers, objects = shown.predictions["answers"], shown.predictions["objects"]
    best = best_threshold(answers, objects)
    marks = [(best, f"At confidence {best:.0%} (best F1)"), (0.5, "At confidence 50%")]
    counts = [count_errors(answers, objects, least) for least, _ in marks]
    total = int((objects[..., 0] >= 0).sum())
    rows = [["Right", "IoU of at least 50% with an object of the same class", *(f"{one[RIGHT]:,}" for one in counts)]]
    rows += [[name, words, *(f"{one[kind]:,}" for one in counts)] for kind, (name, words) in KINDS.items()]
    missed = [f"{one[NONE]:,} ({one[NONE] / max(total, 1):.0%})" for one in counts]
    rows.append(["Missed", f"objects that no prediction found, of {total:,}", *missed])
    worst = max(KINDS, key=lambda kind: counts[0][kind])
    kinds = {**{KINDS[kind][0].lower(): counts[0][kind] for kind in KINDS}, "missed": counts[0][NONE]}
    first = max(kinds, key=lambda name: kinds[name])
    about = f"The most frequent errors: {first} ({kinds[first]:,})." if kinds[first] else "There are no errors."
    if first == "missed" and counts[0][worst]:
        about += f" Among the predictions: {KINDS[worst][0].lower()} ({counts[0][worst]:,})."
    listed = table(
        ["Kind", "What it is", *(words for _, words in marks)],
        rows,
        caption="Predictions and missed objects by kind, at an IoU threshold of 50%",
        numeric=(2, 3),
    )
    return Section("errors", "Errors", join(paragraph(about), listed))


def _curve_section(shown: Shown) -> Section:
    records = shown.scores[_column(shown)]
    curves = class_curves(records, overlaps=(0, 5))
    if not curves:
        return Section(
            "curves", "Precision and recall", paragraph("The validation images have no objects.", class_="note")
        )
    recalls = np.linspace(0, 1, 101)
    half = {label: one[0] for label, one in curves.items()}
    series = {"all classes, IoU 50%": np.mean(list(half.values()), axis=0)}
    series["all classes, IoU 75%"] = np.mean([one[1] for one in curves.values()], axis=0)
    if len(half) > 1:
        chosen = sorted(half, key=lambda label: float(half[label].mean()))[: CURVES - 2]
        series |= {shorten(shown.outputs[label], 40): half[label] for label in chosen}
    drawn = line_chart(
        {name: [(float(x), float(y)) for x, y in zip(recalls, one, strict=True)] for name, one in series.items()},
        title="Precision by recall",
        x_label="recall: share of objects found",
        y_label="precision: share of predictions that are right",
        x_range=(0, 1),
        y_range=(0, 1),
        percent=True,
        x_percent=True,
    )
    more = (
        ""
        if len(half) <= CURVES - 2
        else f" Of {len(half)} classes, the {CURVES - 2} with the lowest curves are drawn."
    )
    what = "Masks" if "mask_records" in shown.scores else "Boxes"
    about = f"{what} are compared. Lines of single classes are at an IoU of 50%.{more}"
    return Section("curves", "Precision and recall", join(paragraph(about), drawn))


def _class_section(shown: Shown) -> Section:
    records, objects = shown.scores[_column(shown)], shown.predictions["objects"]
    best = best_threshold(shown.predictions["answers"], objects)
    intervals = len(records) < LARGE and len(shown.outputs) <= 20
    rows, chart = [], []
    for place, name in enumerate(shown.outputs):
        own = objects[..., 0] == place
        if not (count := int(own.sum())):
            rows.append((2.0, [shorten(name, 80), "0", "no objects", "", ""]))
            continue

        of = partial(average_precision, classes=(place,))
        value, half = of(records), average_precision(records, classes=(place,), overlaps=(0,))
        low, high = spread(of, records) if intervals else (value, value)
        text = f"{value:.1%} ({low:.1%} to {high:.1%})" if intervals and np.isfinite(low) else f"{value:.1%}"
        found = f"{float((own & (objects[..., FOUND] >= best)).sum()) / count:.1%}"
        rows.append((value, [shorten(name, 80), f"{count:,}", text, f"{half:.1%}", found]))
        chart.append(Interval(name, low, value, high, count_of(count, "object")))
    chart.sort(key=lambda row: row.mean)
    drawn = share_chart(
        chart[:MANY], title="Average precision by class, worst first", name_label="Class", remark_label="Objects",
        measure="average precision",
    )  # fmt: skip
    head = ["Class", "Objects", "Average precision", "At IoU 50%", f"Found at confidence {best:.0%}"]
    cells = [one for _, one in sorted(rows, key=lambda row: row[0])]
    numbers = table(head, cells, caption="Results by class", numeric=range(1, 5))
    return Section("classes", "Class by class", join(drawn if chart else None, numbers))


def _size_section(shown: Shown) -> Section:
    records, objects = shown.scores[_column(shown)], shown.predictions["objects"]
    best = best_threshold(shown.predictions["answers"], objects)
    rows = []
    for place, (name, words) in enumerate(SIZED.items(), 1):
        low, high = RANGES[place]
        own = (objects[..., 0] >= 0) & (objects[..., 2] >= low) & (objects[..., 2] < high)
        count = int(own.sum())
        if not count:
            rows.append([name.capitalize(), words, "0", "no objects", "no objects", ""])
            continue
        values = [average_precision(records, size=place, overlaps=some) for some in (range(10), (0,))]
        found = float((own & (objects[..., FOUND] >= best)).sum()) / count
        rows.append([name.capitalize(), words, f"{count:,}", *(f"{value:.1%}" for value in values), f"{found:.1%}"])
    head = ["Size", "Area of the box", "Objects", "Average precision", "At IoU 50%", f"Found at confidence {best:.0%}"]
    listed = table(head, rows, caption="Objects by size, in pixels of the original images", numeric=range(2, 6))
    return Section("sizes", "By size", listed)


def _object(one: np.ndarray, size: tuple[int, int], outputs: Sequence[str]) -> dict[str, Any]:
    """Return an object as JSON values; masks as COCO RLE."""
    place = int(one[LABEL])
    found: dict[str, Any] = {"class": outputs[place], "index": place, "score": round(float(one[SCORE]), 6)}
    found["box"] = [round(float(value), 2) for value in one[:4].clip(0, [size[1], size[0]] * 2)]
    if len(one) > CELLS:
        side = round((len(one) - CELLS) ** 0.5)
        runs = to_runs(one[CELLS:].reshape(side, side), one[:4], size)
        found["segmentation"] = {"size": list(size), "counts": runs}
    return found
