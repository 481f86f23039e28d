"""The page of a search: best settings, the score by each setting, and all trials."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..report.chart import line_chart
from ..report.document import Block, Table, Text, to_html
from ..report.markup import Html
from ..report.page import Section, grid, next_section, render_page
from ..support.durations import say_duration
from ..support.wording import count_of
from ..tasks.metric import MetricSpec
from .halving import Rung, describe_rungs
from .result import Tuned
from .search import Attempt, TuningTarget
from .space import STRENGTH, Axis, format_value

CURVES = 6  # most training curves, of the longest trials


def render_report(
    found: Tuned,
    target: TuningTarget,
    axes: Sequence[Axis],
    rungs: Sequence[Rung],
    attempts: Sequence[Attempt],
    best: Attempt,
) -> str:
    """Render the page."""
    metric, data = target.ground.metric, target.ground.data
    sections: dict[tuple[str, str], list[Block]] = {
        ("settings", "Best settings"): [_found(found, axes, best)],
        ("curves", "Score against each setting"): _against(axes, attempts, metric),
        ("learning", "Learning curves of the best trials"): [_learning(attempts, metric)],
        ("trials", "Every trial"): [_trials(axes, attempts, metric)],
    }
    own = "" if found.own_score is None else f" With the initial settings: {metric.show(found.own_score)}."
    lead = [
        Text(
            f"{metric.title} {metric.show(found.score)} after {count_of(best.epochs, 'epoch')} on samples "
            f"held out of the training set.{own}",
            "lead",
        ),
        *(Text(f"{text}.", "note") for text in edges(axes, best, found.edges)),
        Text(
            f"{count_of(found.trials, 'trial')} by successive halving in {say_duration(found.seconds)}: "
            f"{describe_rungs(rungs)}. The validation samples were not used. Each trial is one training with one "
            "seed: small differences between neighbours are not significant, and the best score of many trials is "
            "optimistic; a run with the recipe shows the true performance."
        ),
    ]
    begun = " ".join(shlex.quote(word) for word in ("saccade", "train", target.config.data.path) if word)
    commands = {
        f"{begun} --recipe {shlex.quote(str(found.recipe))}": "train with these settings to see their true performance"
    }
    return render_page(
        f"{target.name} on {data.name}",
        [*(Section(key, name, to_html(blocks)) for (key, name), blocks in sections.items()), next_section(commands)],
        kind="Tuned settings",
        lead=to_html(lead),
        foot=f"Written by saccade from the files in {found.path}.",
    )


def edges(axes: Sequence[Axis], best: Attempt, found: Mapping[str, str]) -> list[str]:
    """Return a sentence for each setting whose best value is at the edge of its range."""
    return [
        f"The best {axis.words} is the {found[axis.name]} that was tried ({format_value(best.values[axis.name])}); a "
        "better value may lie beyond it: continue from the recipe that was found"
        for axis in axes
        if axis.name in found
    ]


def _found(found: Tuned, axes: Sequence[Axis], best: Attempt) -> Table:
    rows = tuple(
        (
            axis.words,
            format_value(best.values[axis.name]),
            format_value(axis.own),
            ", ".join(format_value(value) for value in axis.values),
            found.edges.get(axis.name, ""),
        )
        for axis in axes
    )
    columns = ("Setting", "Found", "Before", "Tried", "At the edge")
    return Table("Search space", columns, rows).without_empty()


def _against(axes: Sequence[Axis], attempts: Sequence[Attempt], metric: MetricSpec) -> list[Block]:
    """Return a chart for each setting: the best score of each value, with a line for each rung."""
    charts: list[Html] = []
    for axis in axes:
        if axis.ordered:
            lines = {}
            for rung in sorted({one.rung for one in attempts}):
                ended = [one for one in attempts if one.rung == rung and one.trial.score is not None]
                points = best_by_value(axis, ended, larger=metric.larger_is_better)
                if points:
                    lines[count_of(ended[0].epochs, "epoch")] = points
            charts.append(axis_chart(axis, lines, metric))
    about = "Each dot is the best of the trials with that value, whatever their other settings; lines are the rounds."
    return [Text(about), grid(*charts)] if charts else []


def best_by_value(axis: Axis, ended: Sequence[Attempt], *, larger: bool) -> list[tuple[Any, float]]:
    """Return the best score of each value of a setting, in order."""
    found: dict[Any, float] = {}
    for one in ended:
        value, score = one.values[axis.name], one.trial.score
        if score is not None and (value not in found or (score > found[value] if larger else score < found[value])):
            found[value] = score
    return sorted(found.items())


def axis_chart(
    axis: Axis, lines: Mapping[str, Sequence[tuple[Any, float]]], metric: MetricSpec, *, after: str = ""
) -> Html:
    """Return a chart of scores by a setting's values, on a log scale for learning rate and weight decay."""
    scaled = axis.name != STRENGTH and axis.own and axis.own > 0 and min(axis.values) > 0
    label = f"doublings of {format_value(axis.own)}" if scaled else axis.words
    placed = {
        name: [(math.log2(value / axis.own) if scaled else float(value), score) for value, score in points]
        for name, points in lines.items()
    }
    return line_chart(
        placed,
        title=f"{metric.title} against {axis.words}{after}",
        x_label="times the recipe's" if axis.name == STRENGTH else label,
        y_label=metric.words,
        percent=metric.share,
    )


def _learning(attempts: Sequence[Attempt], metric: MetricSpec) -> Html:
    scored = [one for one in attempts if one.trial.score is not None]
    sign = -1 if metric.larger_is_better else 1
    furthest = sorted(scored, key=lambda one: (-one.rung, sign * (one.trial.score or 0.0)))[:CURVES]
    lines = {
        f"{_values(one)} ({count_of(one.epochs, 'epoch')})": [
            (float(epoch), score) for epoch, score in one.trial.scores
        ]
        for one in furthest
    }
    title = f"{metric.title} of the trials in the last round"
    return line_chart(lines, title=title, x_label="epoch", y_label=metric.words, percent=metric.share)


def _trials(axes: Sequence[Axis], attempts: Sequence[Attempt], metric: MetricSpec) -> Table:
    rows = tuple(
        (
            str(number),
            str(one.epochs),
            *(format_value(one.values[axis.name]) for axis in axes),
            metric.show(one.trial.score) if one.trial.score is not None else f"failed: {one.trial.failed}",
            say_duration(one.trial.seconds),
        )
        for number, one in enumerate(attempts, 1)
    )
    columns = ("Trial", "Epochs", *(axis.words for axis in axes), metric.words, "Took")
    numeric = tuple(range(1, len(columns)))
    return Table("In the order of their runs", columns, rows, numeric)


def _values(attempt: Attempt) -> str:
    return ", ".join(f"{name.split('.')[-1]} {format_value(value)}" for name, value in attempt.values.items())
