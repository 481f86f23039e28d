"""A comparison as JSON and as Markdown."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks.metric import MetricSpec
from .budget import say_duration
from .findings import Cost, Findings
from .report_words import bounded, nothing_found, scaled, score, show, signed, size, words

CLASSES = 5  # shown of an arm
PICTURES = 6
NOTHING = (
    "Where nothing is detectable, seeds or pictures are too few: even the largest difference that there can be is "
    "missed more than once in five times."
)
HIDDEN = {"spread"}  # what only the statistics' own code can use


def as_dict(result: Findings) -> dict[str, Any]:
    """Return a comparison as plain mappings, lists, texts and numbers."""
    found = plain(result)
    found["verdicts"] = {arm.name: plain(result.verdict(arm.name)) for arm in result.arms}
    return {"format": 1, **found}


def as_json(result: Findings) -> str:
    """Return a comparison as JSON; numbers that are none are null."""
    return json.dumps(as_dict(result), indent=1, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, MetricSpec):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value) if item.name not in HIDDEN}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return str(value) if isinstance(value, Path) else value


def verdict_lines(result: Findings) -> list[str]:
    """Return a line for every arm: its name and what follows."""
    names = [arm.name for arm in result.arms if arm.name != result.reference]
    return [f"{name}: {result.verdict(name)}" for name in names]


def as_markdown(result: Findings, *, plan: bool = False) -> str:
    """Return what a reader wants to know first, then the rest.

    Args:
        result: of the comparison.
        plan: end with the plan, which `compare` prints before it begins.
    """
    parts = [f"# Which arm helps on {result.plan.data}", _bullets(_bold(line) for line in verdict_lines(result))]
    parts += [_bullets(result.notes)] if result.notes else []
    parts += [f"Compared with `{result.reference}`, {result.metric} of {result.plan.pictures:,} validation pictures."]
    parts += ["## Scores", _scores(result), "## Costs", _costs(result)]
    parts += ["## Other numbers", _others(result)] if any(result.other.values()) else []
    parts += ["## Classes", _classes(result)] if any(result.classes.values()) else []
    parts += ["## Pictures", _pictures(result)] if any(result.disagreements.values()) else []
    parts += ["## Plan", f"```text\n{result.plan}\n```"] if plan else []
    return "\n\n".join(parts) + "\n"


def _scores(result: Findings) -> str:
    rows = []
    for arm in result.arms:
        judged = result.differences.get(arm.identical_to or arm.name)
        told = ["", "", "", ""]
        if judged is not None:
            d = judged.difference
            told = [
                f"{signed(d, d.mean)} [{signed(d, judged.low)}, {signed(d, judged.high)}]",
                f"{judged.p_holm:.2g}",
                "nothing" if nothing_found(d) else size(d, d.detectable),
                judged.verdict.kind,
            ]
        mean = "failed" if arm.mean is None else score(result, arm.mean)
        each = ", ".join(score(result, value) for value in arm.scores)
        rows.append([f"`{arm.name}`", mean, each, *told])
    head = ["arm", result.metric, "each seed", "difference", "p (Holm)", "detectable", "verdict"]
    lost = any(nothing_found(judged.difference) for judged in result.differences.values())
    return _table(head, rows) + (f"\n\n{NOTHING}" if lost else "")


def _costs(result: Findings) -> str:
    head = ["arm", "parameters", "multiply-adds", "ms a step", "against the reference", "trained for", "GPU memory"]
    rows = [[f"`{name}`", *_cost(cost), _equal_time(cost)] for name, cost in result.costs.items()]
    return _table([*head, f"{words(result, result.primary)} at equal time"], rows)


def _cost(cost: Cost) -> list[str]:
    ratio = cost.step_ratio
    return [
        "-" if cost.parameters is None else f"{cost.parameters / 1e6:.3f} M",
        "-" if cost.macs is None else f"{cost.macs / 1e6:.1f} M",
        "-" if cost.seconds_per_step is None else f"{1000 * cost.seconds_per_step:.1f}",
        "-" if ratio is None else f"{ratio.ratio:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]",
        "-" if cost.seconds is None else say_duration(cost.seconds),
        "-" if cost.peak_memory is None else f"{cost.peak_memory / 2**20:,.0f} MiB",
    ]


def _equal_time(cost: Cost) -> str:
    d = cost.at_equal_time
    if d is None or cost.equal_seconds is None:
        return "-"
    change = f"{signed(d, d.mean)} [{signed(d, d.low)}, {signed(d, d.high)}]"
    return f"{change} after {say_duration(cost.equal_seconds)}"


def _others(result: Findings) -> str:
    rows = []
    for metric, arms in result.other.items():
        for name, d in arms.items():
            low, high = (bounded(result, metric, end) for end in (d.low, d.high))
            change = f"{d.mean:+.4g} [{low:+.4g}, {high:+.4g}]"
            rows.append([metric, f"`{name}`", change, f"{d.p_value:.2g}"])
    return "Intervals over seeds alone, not corrected for their number.\n\n" + _table(
        ["number", "arm", "difference", "p"], rows
    )


def _classes(result: Findings) -> str:
    rows = []
    for name, found in result.classes.items():
        for row in found[:CLASSES]:
            d = row.difference
            digits = "+.1f" if d.share else "+.4g"
            mean, low, high = (format(scaled(d, value), digits) for value in (d.mean, d.low, d.high))
            means = [f"{100 * x:.1f}" if d.share else f"{x:.4g}" for x in (row.reference, row.arm)]
            change = f"{mean} [{low}, {high}]"
            rows.append([f"`{name}`", row.name, f"{row.pictures:,}", *means, change, f"{row.p_holm:.2g}"])
    spec = result.spec(result.class_metric)
    unit = " %" if spec is None or spec.share else f" {spec.words}"
    head = ["arm", "class", "pictures", f"reference{unit}", f"arm{unit}", "difference", "p (Holm over classes)"]
    return f"Largest differences, at most {CLASSES} an arm.\n\n" + _table(head, rows)


def _pictures(result: Findings) -> str:
    rows = []
    metric, right = result.picture_metric, result.picture_metric in result.binary
    for name in result.disagreements:
        gains, losses = result.gains_and_losses(name)
        for one in [*gains[: PICTURES // 2], *losses[: PICTURES // 2]]:
            means = [f"{x:.0%}" if right else show(result, metric, x) for x in (one.reference, one.arm)]
            rows.append([f"`{name}`", one.name, one.label, *means])
    told = words(result, metric)
    about = (
        "Share of trainings that get a picture right" if right else f"{told[:1].upper()}{told[1:]}, a mean of trainings"
    )
    truth = "class" if right else "right answer"
    return f"{about}.\n\n" + _table(["arm", "picture", truth, "reference", "arm"], rows)


def _bold(line: str) -> str:
    name, _, rest = line.partition(": ")
    return f"**{name}**: {rest}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
