"""Presenter of segmentation: overlays; images, classes and confusions of a run."""

import base64
from functools import partial
from typing import Any

import numpy as np

from ...data.framing import unfit
from ...data.image import BadSample
from ...report.heat import heat_map
from ...report.markup import Html, join, shorten, tag
from ...report.page import Section, paragraph, table
from ...report.rows import Interval
from ..answer import Answer
from ..metric import MetricSpec
from ..page import CHARTED, COMPARED, Shown, bootstrap, compared_section, no_images, output_section
from ..presenter import RankedPresenter
from .data import MaskTargets
from .drawing import encode_places, name_colours, overlay, palette, resize_mask
from .metrics import class_iou, mean_iou

CONFUSION = 24  # most classes in the confusion matrix
SIDE = 200  # side of images on the page
SERVED = 1024  # longer side of masks in server responses
INTERVALS = "Intervals are over validation images, by resampling them; they say nothing about other seeds."
SAME = 0.999  # least share of equal pixels of agreeing masks


class SegmentationPresenter(RankedPresenter):
    """Presents masks."""

    outputs_key = "classes"
    masks = True
    note = "Metrics are over the pixels of the original images; ignored ones are not counted. " + INTERVALS
    earlier_note = (
        "Metrics are over the pixels of whole images fitted into the model's square input, as in earlier versions; the "
        "grey padding is not counted. " + INTERVALS
    )

    def remark(self, shown: Shown, spec: MetricSpec) -> str | None:
        """Return the interval of a metric over all classes; those of single classes are in the section on classes."""
        if spec.name.startswith("iou_"):
            return None
        ends = shown.interval(spec)
        return "" if ends is None else f"95% interval {spec.show(ends[0])} to {spec.show(ends[1])}"

    def about(self, shown: Shown) -> Html | None:
        """Return the remark on the pixels that are counted."""
        if "frame" in shown.summary.get("validation", {}):
            return super().about(shown)
        return paragraph(self.earlier_note, class_="note") if shown.summary else None

    def sections(self, shown: Shown) -> list[Section]:
        """Return sections on images, classes and confusions."""
        if "counts" not in shown.predictions:
            return []
        found = [_image_section(shown), _class_section(shown)]
        return found + ([_confusion_section(shown)] if "confusion" in shown.predictions else [])

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return whether nearly all pixels have the same class."""
        if first.ndim == 4:  # scores
            first, second = first.argmax(1), second.argmax(1)
        return (first == second).mean((1, 2)) >= SAME

    def describe(self, row: np.ndarray, *, top: int = 5) -> Answer:
        """Return the classes with the largest area, and the mask."""
        shares = np.bincount(row.ravel(), minlength=len(self.spec.outputs)) / max(row.size, 1)
        order = [int(place) for place in np.argsort(-shares, kind="stable")[:top] if shares[place] > 0]
        rows = tuple((self.spec.outputs[place], f"{shares[place]:.1%}", float(shares[place])) for place in order)
        areas = [{"area": area, "share": area} for area in (round(float(shares[place]), 6) for place in order)]
        classes = [{"class": self.spec.outputs[p], "index": p, **area} for p, area in zip(order, areas, strict=True)]
        colours = {self.spec.outputs[p]: name_colours(self.spec.outputs)[self.spec.outputs[p]] for p in order}
        record = {"answer": rows[0][0], **areas[0], "classes": classes, "outputs": list(self.spec.outputs)}
        text = ", ".join(f"{name} {text}" for name, text, _ in rows)
        return Answer(text, rows, record, mask=row, colours=colours, measure="area")

    def table_head(self, *, top: int = 5) -> list[str]:
        """Return columns for class and relative area, largest first."""
        top = min(top, len(self.spec.outputs))
        return [part for number in range(1, top + 1) for part in (f"class_{number}", f"area_{number}")]

    def paint(self, pixels: np.ndarray, answer: Answer) -> np.ndarray:
        """Overlay an image with class colours."""
        assert answer.mask is not None
        return overlay(pixels, resize_mask(answer.mask, (pixels.shape[0], pixels.shape[1])))

    def served_record(self, answer: Answer) -> dict[str, Any]:
        """Return the answer with the mask as PNG of at most 1024 pixels a side; values are indices in `outputs`."""
        assert answer.mask is not None
        step = -(-max(answer.mask.shape) // SERVED)
        mask = answer.mask[::step, ::step]
        drawn = {"png": base64.b64encode(encode_places(mask)).decode(), "height": mask.shape[0], "width": mask.shape[1]}
        return answer.record | {"mask": drawn | {"colours": palette(len(answer.record["outputs"]))}}


def _image_section(shown: Shown) -> Section:
    targets = None if shown.source is None else shown.source.targets
    if "small" not in shown.predictions or not shown.same_samples or not isinstance(targets, MaskTargets):
        return no_images(shown, COMPARED)

    def draw(number: int, place: int, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            truth = targets.mask(place)
        except (BadSample, OSError):
            return None
        if truth.shape != pixels.shape[:2]:
            return None
        answer = unfit(shown.predictions["small"][number], (pixels.shape[0], pixels.shape[1]))
        return _drawn(pixels, truth), _drawn(pixels, answer)

    about = paragraph(
        "Ground truth above, prediction below. Wrong masks are often among the worst, so check the ground truth "
        "before blaming the model."
    )
    legend = tag("p", *[_swatch(name, colour) for name, colour in _colours(shown)], class_="note")
    return compared_section(shown, draw, about=join(about, legend), measure=("mean IoU", "miou"), side=SIDE)


def _drawn(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    step = -(-max(pixels.shape[:2]) // (2 * SIDE))
    small = pixels[::step, ::step]
    return overlay(small, resize_mask(mask, (small.shape[0], small.shape[1])))


def _colours(shown: Shown) -> list[tuple[str, list[int]]]:
    return list(zip(shown.outputs, palette(len(shown.outputs)), strict=True))[:CHARTED]


def _swatch(name: str, colour: list[int]) -> Html:
    style = (
        f"background:rgb({','.join(map(str, colour))});display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em"
    )
    return join(tag("i", style=style, aria_hidden="true"), shorten(name, 60))


def _class_section(shown: Shown) -> Section:
    counts = shown.predictions["counts"]
    right, true, predicted = counts.astype(np.int64).sum(0)
    total = max(int(true.sum()), 1)
    rows, chart = [], []
    for place, name in enumerate(shown.outputs):
        if not true[place] and not predicted[place]:
            rows.append((2.0, [shorten(name, 80), "0", "none", "", ""]))
            continue
        value = class_iou(place, counts)
        low, high = bootstrap(partial(class_iou, place), counts)
        found = f"{right[place] / true[place]:.1%}" if true[place] else "no pixels"
        exact = f"{right[place] / predicted[place]:.1%}" if predicted[place] else "never predicted"
        part, ends = f"{true[place] / total:.2%}", f"{value:.1%} ({low:.1%} to {high:.1%})"
        rows.append((value, [shorten(name, 80), part, ends, found, exact]))
        chart.append(Interval(name, low, value, high, f"{part} of the pixels"))
    return output_section(
        rows,
        chart,
        ["Class", "Of all pixels", "IoU", "Recall", "Precision"],
        title="Class by class",
        caption="Results by class",
        measure="IoU",
        remark="Share of the pixels",
        over="images",
    )


def _confusion_section(shown: Shown) -> Section:
    counts = shown.predictions["confusion"].astype(np.int64).sum(0)
    totals = np.maximum(counts.sum(1, keepdims=True), 1)
    shares = counts / totals
    wrong = shares * (1 - np.eye(len(shares)))
    order = np.argsort(-wrong.max(1), kind="stable")[:CONFUSION]
    names = [shown.outputs[place] for place in order]
    part = shares[np.ix_(order, order)]
    pairs = np.dstack(np.unravel_index(np.argsort(-wrong, axis=None)[:10], wrong.shape))[0]
    rows = [
        [shorten(shown.outputs[i], 80), shorten(shown.outputs[j], 80), f"{counts[i, j]:,}", f"{shares[i, j]:.1%}"]
        for i, j in pairs
        if wrong[i, j] > 0
    ]
    drawn = heat_map(
        part,
        rows=names,
        columns=names,
        title="Predictions for the pixels of each true class, in percent",
        row_label="true class",
        column_label="predicted class",
        texts=[["" if not value else f"{100 * value:.0f}" for value in row] for row in part],
        alternative="Right predictions are on the diagonal.",
    )
    listed = table(
        ["True class", "Predicted", "Pixels", "Share"], rows, caption="Most frequent confusions", numeric=(2, 3)
    )
    left = len(shares) - len(order)
    about = f" The {len(order)} most confused classes of {len(shares)}." if left else ""
    caption = paragraph(f"Mean IoU over all is {mean_iou(shown.predictions['counts']):.1%}.{about}")
    return Section("confusion", "Confusions between classes", join(caption, drawn, listed if rows else None))
