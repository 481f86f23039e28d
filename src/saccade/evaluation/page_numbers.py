"""How an evaluation's page writes its numbers."""

from dataclasses import replace

from ..report.markup import Html, join, tag
from ..tasks.metric import MetricSpec
from .bootstrap import Difference, Estimate

NAME = 60  # characters of a run's or a class' name


def title(spec: MetricSpec) -> str:
    """Return a number's name for a reader."""
    return spec.words[:1].upper() + spec.words[1:]


def cell(found: Estimate | None, spec: MetricSpec) -> Html:
    """Return a number with its interval for a table."""
    return Html("") if found is None else number_cell(spec.show(found.value), ends(found, spec))


def ends(found: Estimate, spec: MetricSpec) -> str:
    """Return both ends of a number's interval; the number itself has told the unit."""
    bare = replace(spec, unit="")
    return f"{bare.show(found.low)} to {bare.show(found.high)}"


def number_cell(value: str, ends: str) -> Html:
    """Return a value in bold and its ends."""
    return join(tag("b", value), " ", tag("span", ends, class_="remark", style="white-space: nowrap"))


def change(value: float, spec: MetricSpec) -> str:
    """Return a difference, of shares in percentage points."""
    if spec.share:
        return f"{100 * value:+.1f} points"
    return f"{value:+.4g}{f' {spec.unit}' if spec.unit else ''}"


def change_ends(found: Difference, spec: MetricSpec) -> str:
    """Return both ends of a difference's interval."""
    bare = replace(spec, unit="")
    return f"{change(found.low, bare)} to {change(found.high, bare)}"


def is_sure(low: float, high: float) -> bool:
    """Tell whether a difference is more than the choice of pictures explains."""
    return not low <= 0 <= high
