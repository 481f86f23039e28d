"""What is asked of the runs of a comparison, and what the numbers it is asked in mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..tasks.metric import MetricSpec


@dataclass(frozen=True)
class Wish:
    """What a user asks, before it is known what the runs measure.

    Attributes:
        metric: its name; None is the one that runs are judged by.
        larger: whether more of it is better; None leaves that to the task.
        margin: a difference too small to matter.
        fixed: whether these very trainings are meant, not others.
        paired: whether runs of one seed belong together.
        level: confidence of the intervals.
    """

    metric: str | None = None
    larger: bool | None = None
    margin: float | None = None
    fixed: bool = False
    paired: bool = True
    level: float = 0.95


@dataclass(frozen=True)
class Question:
    """The same with what the task measures.

    Attributes:
        metric: one of the task's, or any number that runs end with.
        larger: whether more of it is better.
        primary: name of the metric that runs are judged by.
        metrics: what the task measures, by name.
        margin: a difference too small to matter.
        fixed: whether these very trainings are meant, not others.
        paired: whether runs of one seed belong together.
        level: confidence of the intervals.
    """

    metric: str
    larger: bool
    primary: str
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)
    margin: float | None = None
    fixed: bool = False
    paired: bool = True
    level: float = 0.95


def ask(wish: Wish, metrics: Sequence[MetricSpec], primary: str) -> Question:
    """Return a question after checking which way its metric is better.

    Args:
        wish: what a user asks.
        metrics: what the task measures.
        primary: name of the one that runs are judged by.
    """
    known = {one.name: one for one in metrics}
    metric = primary if wish.metric is None else wish.metric
    spec = find_metric(known, metric)
    larger = wish.larger if wish.larger is not None else None if spec is None else spec.larger_is_better
    if larger is None:
        raise ValueError(
            f"metric={metric!r} was given; the task measures {', '.join(known)}. Another number that runs end with can "
            "be compared from Python, if it is told whether more of it is better: larger_is_better=True or False"
        )
    return Question(metric, larger, primary, known, wish.margin, wish.fixed, wish.paired, wish.level)


def find_metric(metrics: Mapping[str, MetricSpec], name: str) -> MetricSpec | None:
    """Return what a number that runs end with means, also by the name it has in summary.json; None if nobody says."""
    return metrics.get(name) or metrics.get(name.removeprefix("val_"))
