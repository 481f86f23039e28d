"""Tables of a comparison's findings, for the page and the Markdown file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...report.document import TEXT, Block, Code, Name, Span, Table, Text
from ...report.markup import shorten
from ...report.page import grid
from ...statistics.difference import Difference
from ...support.durations import say_duration
from ...support.wording import count_of
from ...tuning.report import axis_chart, best_by_value
from ...tuning.space import format_value
from ..conclude.findings import ClassDifference, Cost, Disagreement, Findings
from ..plan.tuned import TunedArms, promise
from .words import MAX_NAME, capital

CLASSES = 12  # most classes shown unfolded
ENDS = 5  # worst and best classes shown if there are more
FOLDED = 300  # most classes in a fold
TOO_FEW = "with so few seeds or samples even the largest possible difference would be missed"


def differences(result: Findings) -> list[Block]:
    """Return every arm's difference with its interval, the scores, and other metrics."""
    found = {name: judged.difference for name, judged in result.differences.items()}
    if not found:
        return [Text("No arm could be compared with the reference.", "note"), scores(result)]
    d = next(iter(found.values()))
    lost = [shorten(name, MAX_NAME) for name, one in found.items() if one.finds_nothing]
    below = [
        shorten(name, MAX_NAME)
        for name, one in found.items()
        if not one.finds_nothing and abs(one.mean) < one.detectable
    ]
    side = "Right" if d.larger_is_better else "Left"
    drawing = (
        f"The dot is the observed difference, the line its {d.level:.0%} confidence interval (corrected for the "
        f"number of arms and looks); the dashed line marks no difference. {side} of it is better."
    )
    text = (
        "The last column is the smallest true difference that an experiment like this one detects four times out "
        "of five."
        + (f" The observed difference is smaller than that for {', '.join(below)}." if below else "")
        + (f" For {', '.join(lost)} there is none: {TOO_FEW}." if lost else "")
    )
    of = f" in {d.unit_name}" if d.unit_name else ""
    caption = f"Difference in {result.words(result.metric)} from {shorten(result.reference, MAX_NAME)}{of}"
    rows = tuple(
        (Name(name), _span(judged.difference, judged.low, judged.high), judged.difference.smallest)
        for name, judged in result.differences.items()
    )
    drawn = Table(caption, ("Arm", "Difference", "Smallest detectable"), rows)
    return [Text(drawing, "drawing"), Text(text), drawn, scores(result), *others(result)]


def _span(d: Difference, low: float, high: float, digits: int = 2) -> Span:
    return Span(d.scaled(low), d.scaled(d.mean), d.scaled(high), d.span(low, high, digits))


def scores(result: Findings) -> Table:
    """Return the scores of every arm and seed."""
    rows = []
    for arm in result.arms:
        judged = result.differences.get(arm.identical_to or arm.name)
        p = "" if judged is None else f"{judged.p_holm:.2g}"
        each = ", ".join(result.show(result.metric, value) for value in arm.scores)
        rows.append((Name(arm.name), result.show(result.metric, arm.mean), p, f"{len(arm.seeds)}", each))
    caption = "Scores of every arm; p: probability of so large a difference by chance alone, corrected for all arms"
    words = result.words(result.metric)
    mean = f"M{words[1:]}" if words.startswith("mean ") else f"Mean {words}"
    return Table(caption, ("Arm", mean, "p (Holm)", "Seeds", "Each seed"), tuple(rows), (1, 2, 3))


def others(result: Findings) -> list[Table]:
    """Return the differences in other metrics."""
    rows = []
    for metric, arms in result.other.items():
        spec = result.spec(metric)
        for name, d in arms.items():
            ends = [min(max(end, -1.0), 1.0) if spec is not None and spec.share else end for end in (d.low, d.high)]
            interval = f"{ends[0]:+.4g} to {ends[1]:+.4g}"
            rows.append((result.words(metric), Name(name), f"{d.mean:+.4g}", interval, f"{d.p_value:.2g}"))
    alone = any(d.samples_fixed for arms in result.other.values() for d in arms.values())
    over = "over seeds only where samples have no scores of their own, " if alone else ""
    caption = f"Differences in other metrics; intervals {over}not corrected for the number of metrics"
    columns = ("Metric", "Arm", "Difference", "Interval", "p")
    return [Table(caption, columns, tuple(rows), (2, 3, 4), folded="Other metrics")] if rows else []


def costs(result: Findings) -> Table:
    """Return the costs of every arm."""
    columns = ("Arm", "Parameters", "Multiply-adds", "ms per step", "Step time relative to the reference")
    rows = tuple((Name(name), *_cost(cost)) for name, cost in result.costs.items())
    caption = "Cost of each arm; multiply-adds are per sample (one is two FLOPs)"
    return Table(caption, (*columns, "Trained for", "GPU memory"), rows, tuple(range(1, 7))).without_empty()


def _cost(cost: Cost) -> list[str]:
    ratio = cost.step_ratio
    return [
        "" if cost.parameters is None else f"{cost.parameters:,}",
        "" if cost.macs is None else f"{cost.macs / 1e6:,.1f} M",
        "" if cost.seconds_per_step is None else f"{1000 * cost.seconds_per_step:.1f}",
        "" if ratio is None else f"{ratio.ratio:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})",
        "" if cost.seconds is None else say_duration(cost.seconds),
        "" if cost.peak_memory is None else f"{cost.peak_memory / 2**20:,.0f} MiB",
    ]


def at_equal_time(result: Findings) -> list[Block]:
    """Return the comparison at equal training time."""
    metric, unit, rows = result.words(result.primary), "", []
    for name, cost in result.costs.items():
        d = cost.at_equal_time
        if d is not None and cost.equal_seconds is not None:
            unit = f", in {d.unit_name}" if d.unit_name else ""
            rows.append((Name(name), _span(d, d.low, d.high), f"after {say_duration(cost.equal_seconds)}"))
    if not rows:
        return []
    text = (
        f"An arm with slower steps has had more time. Here {metric} is read after equal training time, by linear "
        "interpolation between validations; a first epoch that includes compilation counts as long as the others. "
        "The longer run is not at the end of its schedule at that point, so this understates the result of a "
        "schedule of that length. Intervals are over seeds only."
    )
    caption = f"Difference in {metric} from {shorten(result.reference, MAX_NAME)} at equal time{unit}"
    drawn = Table(caption, ("Arm", "Difference", "When"), tuple(rows))
    return [Text(f"{capital(metric)} at equal time", "heading"), Text(text), drawn]


def classes(result: Findings, *, brief: bool = False) -> list[Block]:
    """Return each arm's differences by class: worst first, or with `brief` the few largest."""
    blocks: list[Block] = []
    for name, found in result.classes.items():
        rows = sorted(found, key=lambda row: row.difference.mean)
        if not rows:
            continue
        unit, words = rows[0].difference.unit_name, result.words(result.class_metric)
        caption = f"{shorten(name, MAX_NAME)} against {shorten(result.reference, MAX_NAME)}, "
        caption += f"{unit} of {words}" if unit else words
        if brief:
            most = "" if len(found) <= ENDS else f": the {ENDS} largest differences"
            blocks.append(_class_table(found[:ENDS], f"{caption}{most}"))
            continue
        blocks.append(Text(shorten(name, MAX_NAME), "heading"))
        if len(rows) <= CLASSES:
            blocks.append(_class_table(rows, f"{caption}, worst first"))
            continue
        blocks.append(_class_table(rows[:ENDS], f"{caption}: the {ENDS} largest losses"))
        blocks.append(_class_table(rows[-ENDS:], f"{caption}: the {ENDS} largest gains"))
        rest = rows[ENDS:-ENDS]
        of = f"The other {len(rest)} classes" if len(rest) <= FOLDED else f"{FOLDED} of the other {len(rest)} classes"
        blocks.append(_class_table(rest[:FOLDED], f"{caption}: {of.lower()}", folded=of))
    if not blocks:
        return []
    text = (
        "Each interval is for its class alone: with many classes some exclude zero by chance. A class is marked "
        "clear if its difference remains significant after correction for the number of classes."
    )
    if any(row.difference.share for found in result.classes.values() for row in found):
        text += " Intervals end at 100 points, the largest possible difference: one that wide says nothing."
    return [Text(text), *blocks]


def _class_table(rows: Sequence[ClassDifference], caption: str, folded: str = "") -> Table:
    cells = []
    for row in rows:
        d = row.difference
        clear = "; clear" if row.p_holm < 1 - d.level else ""
        before, after = (f"{x:.1%}" if d.share else f"{x:.4g}" for x in (row.reference, row.arm))
        cells.append((row.name, _span(d, d.low, d.high, 1), f"{before} → {after} of {row.samples:,}{clear}"))
    return Table(caption, ("Class", "Difference", "Reference → arm"), tuple(cells), folded=folded)


def disagreements(result: Findings, most: int) -> list[tuple[Table, list[Disagreement]]]:
    """Return the images on which arms differ most, gains and losses separately."""
    right = result.sample_metric in result.binary
    ways = ("is right more often", "is right less often") if right else ("is better", "is worse")
    found = []
    for name in result.disagreements:
        for way, some in zip(ways, result.gains_and_losses(name), strict=True):
            rows = tuple(
                (
                    one.name,
                    one.label,
                    _answered(result, result.reference, one.reference),
                    _answered(result, name, one.arm),
                )
                for one in some[:most]
            )
            columns = ("Sample", "Class" if right else "Right answer", result.reference, name)
            caption = f"{shorten(name, MAX_NAME)} {way} than {shorten(result.reference, MAX_NAME)}"
            found += [(Table(caption, columns, rows), some[:most])] if rows else []
    return found


def disagreements_text(result: Findings) -> Text:
    """Return the explanation of the tables of images."""
    right = f"the {result.words(result.sample_metric)} of each, averaged over the runs."
    if result.sample_metric in result.binary:
        right = "how many of the runs get each right."
    return Text(f"The validation samples with the largest differences, and {right}")


def _answered(result: Findings, name: str, mean: float) -> str:
    """Format an arm's score on an image."""
    if result.sample_metric not in result.binary:
        return result.show(result.sample_metric, mean)
    seeds = len(result.arm(name).seeds)
    return f"right in {round(mean * seeds)} of {seeds}" if seeds else f"right in {mean:.0%}"


def settings(result: Findings) -> list[Block]:
    """Return the settings that differ between arms, and the common ones."""
    plan = result.plan
    rows: list[tuple[str, ...]] = []
    for arm in plan.arms:
        rows += [(Name(arm.name), Code(key), _value(base), _value(own)) for key, (base, own) in arm.changes.items()]
        rows += [] if arm.changes else [(Name(arm.name), plan.remark(arm), "", "")]
    changed = Table("What differs between the arms", ("Arm", "Setting", "Reference", "Arm's own"), tuple(rows))
    held: Block = Text("Nothing was checked: no second arm could be built.", "note")
    if any(arm.checks for arm in plan.arms):
        caption = "What is held equal, checked for the first seed"
        held = Table(caption, ("What", "In the arms", "How"), tuple(plan.held_equal))
    notes: dict[str, list[str]] = {}
    for arm in plan.arms:
        for note in arm.notes:
            notes.setdefault(note, []).append(shorten(arm.name, MAX_NAME))
    every = len([arm for arm in plan.arms if arm.failed is None])
    lines = [note if len(arms) >= every else f"{', '.join(arms)}: {note}" for note, arms in notes.items()]
    return [changed, *decisions(result), held, *(Text(shorten(line, TEXT), "note") for line in lines)]


def decisions(result: Findings) -> list[Table]:
    """Return the decisions on the reference's settings, and those that differ in other arms."""
    plan, tables = result.plan, list[Table]()
    if differ := plan.differing():
        columns: tuple[str, ...] = ("Arm", "Setting", "Reference", "Arm's own")
        own = [(Name(name), Code(setting), _value(base), _value(own)) for name, setting, base, own in differ]
        tables.append(Table("Decisions that differ between the arms", columns, tuple(own)))
    if base := plan.arm(plan.reference).decisions:
        caption = f"Settings of {shorten(plan.reference, MAX_NAME)} that differ from the recipe, and their source"
        rows = tuple((Code(one.setting), _value(one.value), _value(one.before), one.who, one.why) for one in base)
        columns = ("Setting", "Value", "Recipe", "Set by", "Why")
        tables.append(Table(caption, columns, rows, folded="Where the settings come from"))
    return tables


def failures(result: Findings) -> list[Block]:
    """Return failed arms and seeds, with reasons."""
    rows = tuple(
        (Name(arm.name), "all" if seed < 0 else str(seed), shorten(reason, TEXT))
        for arm in result.arms
        for seed, reason in arm.failures.items()
    )
    text = "The rest was compared without them. The same command tries them again."
    return [Text(text), Table("Runs that did not finish", ("Arm", "Seed", "Why"), rows)] if rows else []


def runs(result: Findings) -> Table:
    """Return every finished run with its score."""
    rows = tuple(
        (Name(arm.name), str(seed), result.show(result.metric, value), _inside(arm.runs.get(seed), result.path))
        for arm in result.arms
        for seed, value in zip(arm.seeds, arm.scores, strict=True)
    )
    columns = ("Arm", "Seed", result.words(result.metric), "Folder")
    return Table("Every finished run", columns, rows, (1, 2), folded="Every run")


def _inside(path: Path | None, folder: Path) -> str:
    if path is None:
        return ""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _value(value: Any) -> str:
    return shorten(
        "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str), 300
    )


def tuning(tuned: TunedArms | None) -> list[Block]:
    """Return how the arms were tuned: curves and settings; empty without tuning."""
    if tuned is None:
        return []
    count = "" if tuned.trained_on is None else f"{tuned.trained_on:,} "
    about = (
        f"Before the comparison every arm was given {say_duration(tuned.seconds)} and the same "
        f"{len({one.number for one in tuned.attempts})} candidates on the same {count}training samples, scored on "
        f"{tuned.judged_on:,} held-out training samples; the validation samples were not used. {promise()}"
    )
    rows = tuple(
        (
            Name(name),
            *(f"{format_value(values[axis.name])}{_end(tuned, name, axis.name)}" for axis in tuned.axes),
            "its own" if name in tuned.own else "best on average",
        )
        for name, values in tuned.values.items()
    )
    table = Table("Settings chosen for the arms", ("Arm", *(axis.words for axis in tuned.axes), "Chosen as"), rows)
    charts, after = [], f", {count_of(tuned.rungs[0].epochs, 'epoch')}"
    for axis in tuned.axes:
        lines = {}
        for name in tuned.values:
            ended = [one for one in tuned.attempts if one.arm == name and one.rung == 0]
            points = best_by_value(axis, ended, larger=tuned.metric.larger_is_better) if axis.ordered else []
            if points:
                lines[name] = points
        if lines:
            charts.append(axis_chart(axis, lines, tuned.metric, after=after))
    return [Text(about), grid(*charts), table]


def _end(tuned: TunedArms, arm: str, axis: str) -> str:
    end = tuned.edges.get(arm, {}).get(axis)
    return f" (the {end} tried)" if end else ""
