"""Sections of an evaluation's page for classifiers: accuracy, calibration, classes, attacks."""

from collections.abc import Sequence

from ...report.class_sections import class_chart, reliability_chart, reliability_table
from ...report.markup import Html, join, shorten
from ...report.page import Section, fold, grid, paragraph, table
from ...report.rows import Interval, share_chart
from ...report.tally import Score
from ..findings import Evaluated, Findings
from ..page_parts import MAX_NAME, change, change_interval, is_sure, number_cell
from ..robust import mean_name

WORST = 20  # classes shown at once
ABOUT = (
    "ECE: mean distance of confidence from accuracy over 15 bins of equal width. Brier: squared distance of the "
    "probabilities from the true class, 0 to 2. Both, and the negative log likelihood, are better when lower."
)


def class_sentence(result: Findings) -> str:
    """Return a sentence on the first run's accuracy and the differences of others."""
    first, mean = result.run(), mean_name(result.primary.name)
    top = first.metrics[result.primary.name]
    text = (
        f"{shorten(first.name, MAX_NAME)} classifies {top.value:.1%} of the images correctly ({top.low:.1%} to "
        f"{top.high:.1%})"
    )
    if mean in first.metrics:
        text += f", and {first.metrics[mean].value:.1%} of corrupted images"
    text += "."
    for name in list(result.runs)[1:]:
        found = result.difference(name)
        sure = "significant" if is_sure(found.low, found.high) else "not significant"
        value, ends = change(found.value, result.primary), change_interval(found, result.primary)
        text += f" {shorten(name, MAX_NAME)}: {value}, {sure} ({ends})."
    return text


def calibration_section(result: Findings) -> Section | None:
    """Return the section on calibration, if there is data for it."""
    if not result.run().reliability:
        return None
    chart = reliability_chart(
        {shorten(run.name, 40): run.reliability for run in result.runs.values()},
        title="Reliability: share of correct predictions by confidence",
    )
    tables = [
        reliability_table(run.reliability, caption=f"{shorten(run.name, MAX_NAME)}: predictions in bins of confidence")
        for run in result.runs.values()
    ]
    about = "The dashed line is perfect calibration; below it a model is overconfident. Shaded: 95% interval of a bin."
    body = grid(chart, tables[0]) if len(tables) == 1 else join(chart, fold("The numbers", grid(*tables)))
    return Section("calibration", "Calibration", join(paragraph(about), body))


def class_section(result: Findings) -> Section | None:
    """Return the section on per-class accuracy, if there is data for it."""
    first = result.run()
    seen = sorted((s for s in first.classes if s.samples), key=lambda s: (s.share, s.name))
    if not seen:
        return None
    if len(result.runs) == 1:
        return Section("classes", "Accuracy by class", _class_bars(seen))
    by_name = {run.name: {s.name: s for s in run.classes} for run in result.runs.values()}

    def own(run: Evaluated, name: str) -> Html:
        score = by_name[run.name][name]
        low, high = score.interval
        return number_cell(f"{score.share:.1%}", f"{low:.0%} to {high:.0%}", share=score.share)

    rows = [
        [shorten(s.name, MAX_NAME), f"{s.samples:,}", *(own(run, s.name) for run in result.runs.values())] for s in seen
    ]
    header = ["Class", "Images", *(shorten(name, MAX_NAME) for name in result.runs)]
    numeric = range(1, len(header))
    caption = "Accuracy by class with Wilson's 95% interval, worst of the first run first"
    shown = table(header, rows[:WORST], caption=caption, numeric=numeric, wide=True)
    others = table(header, rest, caption="The others", numeric=numeric, wide=True) if (rest := rows[WORST:]) else None
    more = fold(f"{len(rest)} more classes", others) if rest else None
    return Section("classes", "Accuracy by class", join(shown, more))


def _class_bars(seen: Sequence[Score]) -> Html:
    """Return bars of one run's per-class accuracy, worst first; all but a few are folded."""
    title = "Accuracy by class with Wilson's 95% interval, worst first"
    shown = class_chart(seen[:WORST], title=title, remark_label="Remark")
    if len(seen) <= WORST:
        return shown
    rest = class_chart(seen[WORST:], title="The others", remark_label="Remark")
    return join(shown, fold(f"{len(seen) - WORST} more classes", rest))


def attack_section(result: Findings) -> Section | None:
    """Return the section on accuracy under attack, if there was one."""
    attack = result.settings["attack"]
    if not attack:
        return None
    attacks = [name for name in result.specs if name.startswith(("fgsm.", "pgd."))]
    rows = []
    for name in [result.primary.name, *attacks]:
        for run in result.runs.values():
            found = run.metrics[name]
            whose = f", {shorten(run.name, 40)}" if len(result.runs) > 1 else ""
            rows.append(Interval(f"{result.specs[name].title}{whose}", found.low, found.value, found.high))
    starts = f"{attack['restarts']} start{'' if attack['restarts'] == 1 else 's'}"
    steps = f"{attack['steps']} step{'' if attack['steps'] == 1 else 's'}"
    about = (
        "Each value of an image may change by epsilon. FGSM takes one step along the sign of the gradient; PGD takes "
        f"{steps} of {attack['step']:g} epsilon from {starts}. The worst point found for each image counts, so PGD "
        "is never above FGSM."
    )
    chart = share_chart(rows, title="Accuracy under attack", measure="Accuracy", name_label="Attack")
    return Section("attacks", "Attacks", join(paragraph(about), chart))
