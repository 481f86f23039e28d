"""How numbers are shown: answers against truth, every column, and the worst images."""

import numpy as np

from ...report.axes import number
from ...report.chart import Point, scatter
from ...report.markup import Html, join, shorten, tag
from ...report.page import Section, grid, paragraph, table
from ..page import Shown, bootstrap, worst_section
from ..presenter import Presenter
from .metrics import explained, rank_correlation, root

DRAWN = 600  # samples in a plot
PLOTS = 6  # columns drawn
NEAR = 0.01  # deviations by which two answers may differ and are still the same to people


class RegressionPresenter(Presenter):
    """Shows numbers."""

    outputs_key = "columns"

    def sections(self, shown: Shown) -> list[Section]:
        """Return answers against truth, the columns, and the images that are farthest off."""
        if "answer" not in shown.predictions:
            return []
        return [_plot_section(shown), _column_section(shown), worst_section(shown, shown.predictions["mae"], _caption)]

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return where no number differs by more than a hundredth of its deviation in training."""
        return np.abs((first - second) / np.asarray(self.spec.extra["std"])).max(1) <= NEAR


def _plot_section(shown: Shown) -> Section:
    answer, truth = shown.predictions["answer"], shown.predictions["truth"]
    every = -(-len(answer) // DRAWN)
    plots = []
    for c, name in enumerate(shown.outputs[:PLOTS]):
        both = zip(truth[::every, c], answer[::every, c], strict=True)
        points = {"samples": [Point(float(t), float(a)) for t, a in both]}
        ends = [float(end(truth[:, c].tolist() + answer[:, c].tolist())) for end in (min, max)]
        title = f"{shorten(name, 60)}: answered against true"
        plots.append(
            scatter(points, title=title, x_label="true", y_label="answered", guide=[(end, end) for end in ends])
        )
    shown_all = "every validation sample" if every == 1 else f"every {every}th validation sample"
    about = f"A dot is {shown_all}; on the dashed line the answer is exact."
    return Section("answers", "Answers against truth", join(paragraph(about), grid(*plots)))


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
        "Every column in its own unit, with the 95% interval over validation samples; the last column is the mean "
        "absolute error of always answering the median"
    )
    return Section("columns", "Column by column", table(head, rows, caption=caption, numeric=range(1, len(head))))


def _caption(shown: Shown, index: int) -> list[Html]:
    """Return what a sample has and what was answered."""
    answer, truth = shown.predictions["answer"][index], shown.predictions["truth"][index]
    lines = []
    for name, a, t in list(zip(shown.outputs, answer, truth, strict=True))[:4]:
        words = f"{number(float(a))} instead of {number(float(t))}"
        lines.append(paragraph(f"{shorten(name, 60)}: ", tag("strong", words)))
    return lines
