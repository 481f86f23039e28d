"""A comparison as JSON and as Markdown."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .budget import say_duration
from .paired import Difference
from .result import Comparison, Cost

CLASSES = 5  # shown of an arm
PICTURES = 6
HIDDEN = {"spread"}  # what only the statistics' own code can use


def as_dict(result: Comparison) -> dict[str, Any]:
    """Return a comparison as plain mappings, lists, texts and numbers."""
    found = plain(result)
    found["verdicts"] = {arm.name: plain(result.verdict(arm.name)) for arm in result.arms}
    return {"format": 1, **found}


def as_json(result: Comparison) -> str:
    """Return a comparison as JSON; numbers that are none are null."""
    return json.dumps(as_dict(result), indent=1, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
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


def verdict_lines(result: Comparison) -> list[str]:
    """Return a line for every arm: its name and what follows."""
    names = [arm.name for arm in result.arms if arm.name != result.reference]
    return [f"{name}: {result.verdict(name)}" for name in names]


def as_markdown(result: Comparison) -> str:
    """Return what a reader wants to know first, then the rest."""
    parts = [f"# Which arm helps on {result.plan.data}", _bullets(_bold(line) for line in verdict_lines(result))]
    parts += [_bullets(result.notes)] if result.notes else []
    parts += [f"Compared with `{result.reference}`, {result.metric} of {result.plan.pictures:,} validation pictures."]
    parts += ["## Scores", _scores(result), "## Costs", _costs(result)]
    parts += ["## Other numbers", _others(result)] if any(result.other.values()) else []
    parts += ["## Classes", _classes(result)] if any(result.classes.values()) else []
    parts += ["## Pictures", _pictures(result)] if any(result.disagreements.values()) else []
    parts += ["## Plan", f"```text\n{result.plan}\n```"]
    return "\n\n".join(parts) + "\n"


def _scores(result: Comparison) -> str:
    rows = []
    for arm in result.arms:
        judged = result.differences.get(arm.identical_to or arm.name)
        told = ["", "", "", ""]
        if judged is not None:
            d = judged.difference
            told = [
                f"{_signed(d, d.mean)} [{_signed(d, judged.low)}, {_signed(d, judged.high)}]",
                f"{judged.p_holm:.2g}",
                _sized(d, d.detectable),
                judged.verdict.kind,
            ]
        mean = "failed" if arm.mean is None else _number(result, arm.mean)
        each = ", ".join(_number(result, score) for score in arm.scores)
        rows.append([f"`{arm.name}`", mean, each, *told])
    head = ["arm", result.metric, "each seed", "difference", "p (Holm)", "detectable", "verdict"]
    return _table(head, rows)


def _costs(result: Comparison) -> str:
    head = ["arm", "parameters", "multiply-adds", "ms a step", "against the reference", "trained for", "GPU memory"]
    rows = [[f"`{name}`", *_cost(cost), _equal_time(cost)] for name, cost in result.costs.items()]
    return _table([*head, "accuracy at equal time"], rows)


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
    points = f"{100 * d.mean:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    return f"{points} after {say_duration(cost.equal_seconds)}"


def _others(result: Comparison) -> str:
    rows = []
    for metric, arms in result.other.items():
        for name, d in arms.items():
            rows.append([metric, f"`{name}`", f"{d.mean:+.4g} [{d.low:+.4g}, {d.high:+.4g}]", f"{d.p_value:.2g}"])
    return "Intervals over seeds alone, not corrected for their number.\n\n" + _table(
        ["number", "arm", "difference", "p"], rows
    )


def _classes(result: Comparison) -> str:
    rows = []
    for name, found in result.classes.items():
        for row in found[:CLASSES]:
            d = row.difference
            change = f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"
            shares = [f"{100 * row.reference:.1f}", f"{100 * row.arm:.1f}"]
            rows.append([f"`{name}`", row.name, f"{row.pictures:,}", *shares, change, f"{row.p_holm:.2g}"])
    head = ["arm", "class", "pictures", "reference %", "arm %", "difference", "p (Holm over classes)"]
    return f"Largest differences, at most {CLASSES} an arm.\n\n" + _table(head, rows)


def _pictures(result: Comparison) -> str:
    rows = []
    for name, found in result.disagreements.items():
        gains = [one for one in found if one.arm > one.reference][: PICTURES // 2]
        losses = [one for one in found if one.arm < one.reference][: PICTURES // 2]
        for one in [*gains, *losses]:
            rows.append([f"`{name}`", one.name, one.label, f"{one.reference:.0%}", f"{one.arm:.0%}"])
    return "Share of trainings that get a picture right.\n\n" + _table(
        ["arm", "picture", "class", "reference", "arm"], rows
    )


def _number(result: Comparison, value: float) -> str:
    return f"{100 * value:.2f} %" if result.metric in ("top1", "top5", "macro_top1") else f"{value:.4g}"


def _signed(d: Difference, value: float) -> str:
    return f"{100 * value + 0.0:+.2f}" if d.right_or_wrong else f"{value + 0.0:+.4g}"


def _sized(d: Difference, value: float) -> str:
    return f"{100 * value:.2f}" if d.right_or_wrong else f"{value:.4g}"


def _bold(line: str) -> str:
    name, _, rest = line.partition(": ")
    return f"**{name}**: {rest}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
