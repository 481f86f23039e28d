"""What a report says of how the arms were tuned: each arm's curve, and the settings it got."""

from ..durations import say_duration
from ..report.chart import line_chart
from ..report.document import Block, Name, Table, Text
from ..report.page import grid
from ..tuning.report import axis_label, best_by_value, place
from ..tuning.space import say_value
from ..wording import count_of
from .tuned import TunedArms, promise


def tuning(tuned: TunedArms | None) -> list[Block]:
    """Return the section; empty for arms that were not tuned."""
    if tuned is None:
        return []
    count = "" if tuned.trained_on is None else f"{tuned.trained_on:,} "
    about = (
        f"Before the comparison every arm was given {say_duration(tuned.seconds)} and the same "
        f"{len({one.number for one in tuned.attempts})} candidates on the same {count}training samples, judged on "
        f"{tuned.judged_on:,} others of them; the validation samples were not looked at. {promise()}"
    )
    rows = tuple(
        (
            Name(name),
            *(f"{say_value(values[axis.name])}{_end(tuned, name, axis.name)}" for axis in tuned.axes),
            "its own" if name in tuned.own else "best on average",
        )
        for name, values in tuned.values.items()
    )
    table = Table("What the arms got", ("Arm", *(axis.words for axis in tuned.axes), "Chosen as"), rows)
    charts, trained = [], count_of(tuned.rungs[0].epochs, "epoch")
    for axis in tuned.axes:
        lines = {}
        for name in tuned.values:
            ended = [one for one in tuned.attempts if one.arm == name and one.rung == 0]
            points = best_by_value(axis, ended, larger=tuned.metric.larger_is_better) if axis.ordered else []
            if points:
                lines[name] = [(place(axis, value), score) for value, score in points]
        if lines:
            charts.append(
                line_chart(
                    lines,
                    title=f"{tuned.metric.title} against {axis.words}, {trained}",
                    x_label=axis_label(axis),
                    y_label=tuned.metric.words,
                    percent=tuned.metric.share,
                )
            )
    return [Text(about), grid(*charts), table]


def _end(tuned: TunedArms, arm: str, axis: str) -> str:
    end = tuned.edges.get(arm, {}).get(axis)
    return f" (the {end} tried)" if end else ""
