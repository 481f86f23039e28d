"""What reports show of a run, and sections that presenters share."""

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

NAME = 120  # characters of a name
IMAGES = 24
WORST, SOME = 12, 6  # samples whose truth is shown beside the answer
COMPARED = "Worst, typical and best images"
CHARTED = 60  # outputs in a chart
RESAMPLES = 400
FARTHEST_OFF = (
    "The validation images that are farthest off. Wrong targets and damaged images gather here, so look at the targets "
    "before blaming the model."
)


__getattr__ = find_moved(__name__)


@dataclass(frozen=True)
class Shown:
    """What a page can show of a run."""

    model: Html  # what was trained, in words
    data: str  # name of the samples
    summary: Mapping[str, Any]  # what the run ended with; empty for one that has not
    records: Sequence[Mapping[str, Any]]  # what was measured, one record an epoch
    outputs: Sequence[str]  # names of what the model answers with
    metrics: Sequence[MetricSpec]  # what answers are judged by
    primary: str  # name of the one that counts
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)  # of each validation sample, by column
    predictions: Mapping[str, np.ndarray] = field(default_factory=dict)  # what else was kept of the answers
    source: Source | None = None  # the validation samples; None where they are not at hand

    def metric(self, name: str) -> MetricSpec | None:
        """Return a metric by its name."""
        return next((one for one in self.metrics if one.name == name), None)

    @property
    def count(self) -> int:
        """Validation samples."""
        found = self.summary.get("validation", {})
        return int(found.get("samples", found.get("pictures", 0)))  # the name before

    def value(self, name: str) -> float | None:
        """Return what the run ended with in a metric."""
        found = self.summary.get(f"val_{name}")
        return float(found) if isinstance(found, int | float) and np.isfinite(found) else None

    def interval(self, spec: MetricSpec) -> tuple[float, float] | None:
        """Return the 95% interval over samples of a metric that is no mean of them; None without its records."""
        if spec.statistic is None or spec.column not in self.scores:
            return None
        return bootstrap(spec.statistic, self.scores[spec.column])

    def read(self, place: int) -> np.ndarray | None:
        """Return the image of a validation sample, or None where it cannot be read."""
        try:
            return None if self.source is None else self.source.read(place)
        except (BadSample, OSError, IndexError):
            return None

    @property
    def same_samples(self) -> bool:
        """Whether the validation samples at hand are still those that were answered."""
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
    """Return a section on every output by itself, worst first: a chart of intervals and a table.

    Args:
        rows: what a row is sorted by, and its cells, the output's name first.
        chart: the interval of every output that has one.
        head: names of the columns; the first says what an output is.
        measure: what the intervals are of.
        remark: what the chart's remarks tell.
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
    about = paragraph(f"The whisker is the 95% interval over validation {over}, by resampling them.")
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
    """Return the images with the highest loss, with the lines that the task tells of each; `alt` ends their names."""
    title = "The worst images"
    if shown.source is None or not shown.same_samples:
        return no_images(shown, title)
    places = shown.predictions[PLACE]
    items: list[Html] = []
    # NaN counts as the highest loss: the reader should see it first.
    for index in np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable"):
        if len(items) == IMAGES:
            break
        place = int(places[index])
        pixels = shown.read(place)
        if pixels is not None:
            name = shorten(shown.source.name(place), NAME)
            image = tag("div", encode_image(pixels, alt=f"{name}{alt(int(index))}"), class_="frame")
            items.append(tag("li", image, *tell(shown, int(index)), paragraph(name, class_="name")))
    return Section("pictures", title, join(paragraph(about), _listed(items)))


def choose_shown(scores: np.ndarray) -> np.ndarray:
    """Return which samples are worth looking at: the worst, those in the middle and the best, in rising order."""
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
    """Return the samples that `choose_shown` chose, each with its truth and the answer to it.

    Args:
        draw: both, drawn on an image, given its number among those shown, its place and its pixels; None if it cannot.
        about: what stands above them.
        measure: what they were chosen by: in words, and its name among the predictions.
        side: the longer one of an image on the page, in pixels.
        style: class of the list.
    """
    kept, (words, column), items = shown.predictions, measure, []
    for number, index in enumerate(kept["shown"]):
        place = int(kept[PLACE][index])
        pixels = shown.read(place)
        drawn = None if pixels is None else draw(number, place, pixels)
        if shown.source is None or drawn is None:
            continue
        name = shorten(shown.source.name(place), NAME)
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
    """Return the 95% interval of a statistic of columns, N, ... each, by resampling samples, the same way each time."""
    draws, count = np.random.default_rng(0), len(columns[0])
    found = []
    for _ in range(RESAMPLES if count <= 20_000 else RESAMPLES // 4):
        keep = draws.integers(0, count, count)
        found.append(float(statistic(*(column[keep] for column in columns))))
    low, high = np.nanpercentile(found, (2.5, 97.5)) if np.isfinite(found).any() else (np.nan, np.nan)
    return float(low), float(high)


def no_images(shown: Shown, title: str) -> Section:
    """Return the section that says why no validation samples are shown."""
    message = "The validation images were not at hand when this page was written."
    if shown.source is not None:
        message = "The validation images are not those of the run any more, so none are shown."
    return Section("pictures", title, paragraph(message, class_="note"))
