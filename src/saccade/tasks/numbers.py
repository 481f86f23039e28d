"""Metrics of numbers: errors, explained variance, rank correlation; and their report sections."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.spec import InputSpec
from ..report.axes import number
from ..report.chart import Point, scatter
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, grid, paragraph, table
from .metric import PLACE, Metrics, MetricSpec
from .page import Shown, bootstrap, worst_section

DRAWN = 600  # most samples in a plot
PLOTS = 6  # most columns drawn


class NumberMetrics(Metrics):
    """Collects predicted numbers, `value` of the answers, and targets.

    Several columns are scaled by their standard deviations in training, stored as `std` in the spec's `extra`.
    """

    primary = "mae"

    def __init__(self, spec: InputSpec | None) -> None:
        super().__init__(spec)
        std = [] if spec is None else spec.extra["std"]
        self.scale = torch.tensor(std if len(std) > 1 else [1.0])

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return errors, R squared and rank correlation; errors of several columns are in standard deviations."""
        near: dict[str, Any] = {"larger_is_better": False, "unit": "" if len(spec.outputs) == 1 else "deviations"}
        return (
            MetricSpec("loss", "loss", larger_is_better=False),
            MetricSpec("mae", "mean absolute error", **near),
            MetricSpec("rmse", "root mean squared error", statistic=root, source="squared", **near),
            MetricSpec("r2", "R squared", chance=0.0, statistic=explained, source="pair"),
            MetricSpec("spearman", "Spearman's correlation", chance=0.0, statistic=rank_correlation, source="pair"),
        )

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return predictions and targets, B, columns, and the loss of each sample."""
        return {"answer": answers["value"], "truth": batch["target"].float(), "loss": answers["loss"]}

    def scores(self) -> dict[str, Tensor]:
        """Return errors, and pairs of prediction and target."""
        answer, truth = self.columns["answer"], self.columns["truth"]
        off = (answer - truth) / self.scale
        return {
            "loss": self.columns["loss"],
            "mae": off.abs().mean(1),
            "squared": off.square().mean(1),
            "pair": torch.stack([answer, truth], dim=1),
        }

    def predictions(self) -> dict[str, Tensor]:
        """Return predictions and targets for pages."""
        kept = {name: self.columns[name] for name in (PLACE, "answer", "truth", "loss")}
        return kept | {"mae": self.scores()["mae"]}


def root(squared: np.ndarray) -> float:
    """Return the root of the mean."""
    return float(np.sqrt(squared.astype(np.float64).mean()))


def explained(pairs: np.ndarray) -> float:
    """Return R squared, averaged over columns; pairs N, 2, columns."""
    answer, truth = pairs[:, 0].astype(np.float64), pairs[:, 1].astype(np.float64)
    left = np.square(truth - answer).sum(0)
    whole = np.square(truth - truth.mean(0)).sum(0)
    return float(np.mean(1 - left / np.maximum(whole, 1e-30)))


def rank_correlation(pairs: np.ndarray) -> float:
    """Return Spearman's rank correlation, averaged over columns; 0 for constant predictions."""
    from scipy.stats import rankdata  # slow to import

    found = []
    for column in range(pairs.shape[2]):
        first, second = (rankdata(pairs[:, side, column]) for side in (0, 1))
        spread = first.std() * second.std()
        found.append(((first - first.mean()) * (second - second.mean())).mean() / spread if spread > 0 else 0.0)
    return float(np.mean(found))


def number_sections(shown: Shown) -> list[Section]:
    """Return sections with predictions against targets, the columns, and the images with the largest errors."""
    if not {"answer", "truth", "mae"} <= shown.predictions.keys():
        return []
    return [_plot_section(shown), _column_section(shown), worst_section(shown, shown.predictions["mae"], _caption)]


def _plot_section(shown: Shown) -> Section:
    answer, truth = shown.predictions["answer"], shown.predictions["truth"]
    every = -(-len(answer) // DRAWN)
    plots = []
    for c, name in enumerate(shown.outputs[:PLOTS]):
        both = zip(truth[::every, c], answer[::every, c], strict=True)
        points = {"samples": [Point(float(t), float(a)) for t, a in both]}
        ends = [float(end(truth[:, c].tolist() + answer[:, c].tolist())) for end in (min, max)]
        title = f"{shorten(name, 60)}: predicted against true"
        plots.append(
            scatter(points, title=title, x_label="true", y_label="predicted", guide=[(end, end) for end in ends])
        )
    shown_all = "every validation sample" if every == 1 else f"every {every}th validation sample"
    about = f"Each dot is {shown_all}; on the dashed line the prediction is exact."
    return Section("answers", "Predictions against truth", join(paragraph(about), grid(*plots)))


def _column_section(shown: Shown) -> Section:
    answer, truth = shown.predictions["answer"].astype(np.float64), shown.predictions["truth"].astype(np.float64)
    rows = []
    for column, name in enumerate(shown.outputs):
        off = np.abs(answer[:, column] - truth[:, column])
        pair = np.stack([answer[:, column : column + 1], truth[:, column : column + 1]], axis=1)
        low, high = bootstrap(np.mean, off)
        guess = float(np.abs(truth[:, column] - np.median(truth[:, column])).mean())
        error, squared = f"{number(off.mean())} ({number(low)} to {number(high)})", number(root(np.square(off)))
        order = [f"{explained(pair):.3f}", f"{rank_correlation(pair):.3f}"]
        rows.append([shorten(name, 80), error, squared, *order, number(guess)])
    head = ["Column", "Mean absolute error", "Root mean squared", "R squared", "Spearman", "Always the median"]
    caption = (
        "Each column in its own unit, with the 95% interval over validation samples; the last column is the mean "
        "absolute error of always predicting the median"
    )
    return Section("columns", "Column by column", table(head, rows, caption=caption, numeric=range(1, len(head))))


def _caption(shown: Shown, index: int) -> list[Html]:
    """Return a sample's target and prediction as text."""
    answer, truth = shown.predictions["answer"][index], shown.predictions["truth"][index]
    lines = []
    for name, a, t in list(zip(shown.outputs, answer, truth, strict=True))[:4]:
        words = f"{number(float(a))} instead of {number(float(t))}"
        lines.append(paragraph(f"{shorten(name, 60)}: ", tag("strong", words)))
    return lines
