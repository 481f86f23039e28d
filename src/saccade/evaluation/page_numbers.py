"""How an evaluation's page writes its numbers."""

from ..report.markup import Html, join, tag
from .bootstrap import Estimate
from .result import Evaluation
from .robust import MEAN

NAME = 60  # characters of a run's or a class' name
TITLES = {
    "top1": "Accuracy (top 1)",
    "top5": "Top 5",
    "mean_class": "Mean over classes",
    "mcc": "Matthews correlation",
    "nll": "Negative log likelihood",
    "brier": "Brier score",
    "ece": "Calibration error (ECE)",
    MEAN: "Mean corruption accuracy",
}
PLAIN = ("nll", "brier", "mcc")  # not shares of anything


def attack_names(result: Evaluation) -> list[str]:
    """Return the names of the attacks' numbers."""
    return [name for name in result.run().metrics if name.startswith(("fgsm.", "pgd."))]


def metric_title(metric: str) -> str:
    """Return a number's name for a reader."""
    kind, _, epsilon = metric.partition(".")
    return f"{kind.upper()} {epsilon}/255" if kind in ("fgsm", "pgd") else TITLES.get(metric, metric)


def cell(found: Estimate | None, metric: str) -> Html:
    """Return a number with its interval for a table."""
    if found is None:
        return Html("")
    if metric in PLAIN:
        return number_cell(f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}")
    return number_cell(f"{found.value:.1%}", f"{found.low:.1%} to {found.high:.1%}")


def number_cell(value: str, ends: str) -> Html:
    """Return a value in bold and its ends."""
    return join(tag("b", value), " ", tag("span", ends, class_="remark", style="white-space: nowrap"))


def points(share: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{100 * share:+.1f} points"
