"""Data for reports, and sections shared by presenters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.image import BadSample
from ..data.source import Source
from ..report.image import encode_image
from ..report.markup import Child, Html, join, shorten, tag
from ..report.page import Section, paragraph, table
from ..report.rows import Interval, share_chart
from ..support.moved import find_moved
from .metric import PLACE, MetricSpec

MAX_NAME = 120  # most characters of a name
IMAGES = 24
WORST, SOME = 12, 6  # worst samples shown, and samples of `compared_section`
COMPARED = "Worst, typical and best images"
CHARTED = 60  # most outputs in a chart
RESAMPLES = 400
FARTHEST_OFF = (
    "The validation images with the largest errors. Wrong targets and damaged images often appear here, so check the "
    "targets before blaming the model."
)


__getattr__ = find_moved(__name__)


@dataclass(frozen=True)
class Shown:
    """Results of a run for its page."""

    model: Html  # description of the model
    data: str  # name of the dataset
    summary: Mapping[str, Any]  # the run's summary; empty if unfinished
    records: Sequence[Mapping[str, Any]]  # metrics of each epoch
    outputs: Sequence[str]  # names of the outputs
    metrics: Sequence[MetricSpec]  # the metrics
    primary: str  # name of the primary metric
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)  # scores of validation samples by column
    predictions: Mapping[str, np.ndarray] = field(default_factory=dict)  # further predictions
    source: Source | None = None  # the validation samples, if available

    def metric(self, name: str) -> MetricSpec | None:
        """Return a metric's specification by name."""
        return next((one for one in self.metrics if one.name == name), None)

    @property
    def count(self) -> int:
        """Number of validation samples."""
        found = self.summary.get("validation", {})
        return int(found.get("samples", found.get("pictures", 0)))  # the key in earlier versions

    def value(self, name: str) -> float | None:
        """Return the run's final value of a metric."""
        found = self.summary.get(f"val_{name}")
        return float(found) if isinstance(found, int | float) and np.isfinite(found) else None

    def interval(self, spec: MetricSpec) -> tuple[float, float] | None:
        """Return the 95% interval over samples of a metric with a statistic; None without records."""
        if spec.statistic is None or spec.column not in self.scores:
            return None
        return bootstrap(spec.statistic, self.scores[spec.column])

    def read(self, place: int) -> np.ndarray | None:
        """Return the image of a validation sample, or None if it cannot be read."""
        try:
            return None if self.source is None else self.source.read(place)
        except (BadSample, OSError, IndexError):
            return None

    @property
    def same_samples(self) -> bool:
        """Whether the available validation samples are those of the run."""
        if self.source is None or PLACE not in self.predictions:
            return False
        places = self.predictions[PLACE]
        return not len(places) or int(places.max()) < len(self.source)


def output_section(
    rows: Sequence[tuple[float, Sequence[Child]]],
    chart: list[Interval],
    head: Sequence[str],
    *,
    title: str,
    caption: str,
    measure: str,
    remark: str,
    over: str = "samples",
) -> Section:
    """Return a section on every output, worst first: a chart of intervals and a table.

    Args:
        rows: sort key and cells of each row, the output's name first.
        chart: interval of each output, if it has one.
        head: names of the columns; the first names the outputs.
        measure: name of the metric of the intervals.
        remark: meaning of the chart's remarks.
        over: what was resampled.
    """
    drawn = share_chart(
        sorted(chart, key=lambda row: row.mean)[:CHARTED],
        title=f"{measure} by {head[0].lower()}, worst first",
        name_label=head[0],
        remark_label=remark,
        measure=measure,
    )
    cells = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
    numbers = table(head, cells, caption=caption, numeric=range(1, len(head)))
    about = paragraph(f"The whiskers are 95% intervals over validation {over}, by resampling them.")
    key = "labels" if head[0] == "Label" else "classes"
    return Section(key, title, join(about, drawn if chart else None, numbers))


def worst_section(
    shown: Shown,
    losses: np.ndarray,
    tell: Callable[[Shown, int], list[Html]],
    *,
    about: str = FARTHEST_OFF,
    alt: Callable[[int], str] = lambda _: "",
) -> Section:
    """Return a section with the images of highest loss and the task's captions; `alt` is appended to alt texts."""
    title = "The worst images"
    if shown.source is None or not shown.same_samples:
        return no_images(shown, title)
    places = shown.predictions[PLACE]
    items: list[Html] = []
    # NaN counts as the highest loss.
    for index in np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable"):
        if len(items) == IMAGES:
            break
        place = int(places[index])
        pixels = shown.read(place)
        if pixels is not None:
            name = shorten(shown.source.name(place), MAX_NAME)
            image = tag("div", encode_image(pixels, alt=f"{name}{alt(int(index))}"), class_="frame")
            items.append(tag("li", image, *tell(shown, int(index)), paragraph(name, class_="name")))
    return Section("pictures", title, join(paragraph(about), _listed(items)))


def choose_shown(scores: np.ndarray) -> np.ndarray:
    """Return the worst, middle and best samples, in ascending order."""
    order = np.argsort(scores, kind="stable")
    middle = len(order) // 2
    parts = (order[:WORST], order[max(middle - SOME // 2, 0) : middle + SOME // 2], order[-SOME:])
    return np.array(list(dict.fromkeys(int(index) for part in parts for index in part)), dtype=np.int64)


def compared_section(
    shown: Shown,
    draw: Callable[[int, int, np.ndarray], tuple[np.ndarray, np.ndarray] | None],
    *,
    about: Html,
    measure: tuple[str, str],
    side: int,
    style: str = "pictures",
) -> Section:
    """Return a section with the samples of `choose_shown`, each with target and prediction.

    Args:
        draw: draws target and prediction, given the position on the page, sample index and pixels; may return None.
        about: text above the images.
        measure: the selection metric: its words, and its key in the predictions.
        side: longer side of an image on the page, in pixels.
        style: CSS class of the list.
    """
    kept, (words, column), items = shown.predictions, measure, []
    for number, index in enumerate(kept["shown"]):
        place = int(kept[PLACE][index])
        pixels = shown.read(place)
        drawn = None if pixels is None else draw(number, place, pixels)
        if shown.source is None or drawn is None:
            continue
        name = shorten(shown.source.name(place), MAX_NAME)
        group = "worst" if number < WORST else "typical" if number < WORST + SOME else "best"
        images = [
            tag("div", encode_image(one, alt=f"{what} of {name}", largest=side), class_="frame")
            for one, what in zip(drawn, ("truth", "answer"), strict=True)
        ]
        caption = paragraph(f"{group}: {words} ", tag("strong", f"{float(kept[column][index]):.1%}"))
        items.append(tag("li", *images, caption, paragraph(name, class_="name")))
    return Section("pictures", COMPARED, join(about, _listed(items, style)))


def _listed(items: Sequence[Html], style: str = "pictures") -> Html:
    return tag("ol", *items, class_=style) if items else paragraph("No image could be read.", class_="note")


def bootstrap(statistic: Callable[..., float], *columns: np.ndarray) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a statistic of columns, N, ... each, with a fixed seed."""
    draws, count = np.random.default_rng(0), len(columns[0])
    found = []
    for _ in range(RESAMPLES if count <= 20_000 else RESAMPLES // 4):
        keep = draws.integers(0, count, count)
        found.append(float(statistic(*(column[keep] for column in columns))))
    low, high = np.nanpercentile(found, (2.5, 97.5)) if np.isfinite(found).any() else (np.nan, np.nan)
    return float(low), float(high)


def no_images(shown: Shown, title: str) -> Section:
    """Return the section for unavailable validation samples."""
    message = "The validation images were not available when this page was written."
    if shown.source is not None:
        message = "The validation images have changed since the run, so none are shown."
    return Section("pictures", title, paragraph(message, class_="note"))
