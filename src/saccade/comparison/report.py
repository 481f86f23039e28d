"""The report of a comparison: one page that says which arm helps, to a reader who knows no statistics."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.source import Source
from ..files import write_text
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, paragraph, render_page, table
from ..runs import Run
from .findings import Findings
from .report_costs import cost_section
from .report_parts import Records, class_section, curve_section, interval_section, picture_section
from .report_record import failure_section, repeat_section, setting_section
from .report_words import NAME, plain_verdict, summary

HOW = (
    (
        "Seed",
        "Training begins from chance: two trainings of the very same arm end differently. So each is trained several "
        "times, each time from another seed, and arms are compared seed by seed.",
    ),
    ("Points", "One point is one {of} in a hundred: from 90% to 91% is one point."),
    (
        "Interval",
        "What the true difference may be, given these trainings and these pictures. If it does not hold zero, "
        "the difference is not put down to chance.{cut}",
    ),
    (
        "Cannot tell",
        "Not the same as no difference. The experiment is too small to say: more seeds, or more validation "
        "pictures, make it sharper.",
    ),
    ("Not said", "Nothing is said of other pictures than of this kind, of other models, or of longer training."),
)


def write_report(result: Findings, source: Source | None = None) -> Path:
    """Write report.html into a comparison's folder.

    Args:
        result: of the comparison; its runs are read for their curves.
        source: the validation pictures; None to show none.
    """
    file = result.path / "report.html"
    write_text(file, render_report(result, source=source, records=read_records(result), request=read_request(result)))
    return file


def render_report(
    result: Findings,
    *,
    source: Source | None = None,
    records: Records | None = None,
    request: Mapping[str, Any] | None = None,
) -> str:
    """Return the page; what is not given is left out.

    Args:
        result: of the comparison.
        source: the validation pictures.
        records: what each run measured, by arm and seed.
        request: what was asked.
    """
    found: list[Section | None] = [
        interval_section(result),
        curve_section(result, records or {}),
        cost_section(result),
        class_section(result),
        picture_section(result, source),
        setting_section(result),
        failure_section(result),
        repeat_section(result, request),
    ]
    return render_page(
        f"Which arm helps on {shorten(result.plan.data, 120)}",
        [section for section in found if section is not None],
        kind="Comparison",
        lead=_lead(result),
        foot=f"Written by saccade from the files in {result.path}.",
    )


def read_records(result: Findings) -> Records:
    """Return what the runs measured, by arm and seed; a run that cannot be read is left out."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for arm in result.arms:
        for seed, path in arm.runs.items():
            try:
                found.setdefault(arm.name, {})[seed] = Run(Path(path)).metrics()
            except (OSError, ValueError):
                continue
    return found


def read_request(result: Findings) -> dict[str, Any] | None:
    """Return what was asked, from comparison.json; None if that cannot be read."""
    try:
        request = json.loads((result.path / "comparison.json").read_text(encoding="utf-8"))["request"]
    except (OSError, ValueError, KeyError):
        return None
    return dict(request)


def _lead(result: Findings) -> Html:
    plan = result.plan
    rows = [
        [
            shorten(arm.name, NAME),
            tag("strong", _kind(result, arm.name), style="white-space: nowrap"),
            shorten(plain_verdict(result, arm.name), 1200),
        ]
        for arm in result.arms
        if arm.name != result.reference
    ]
    seeds = len(result.arm(result.reference).seeds)
    caption = (
        f"{result.metric} on {plan.pictures:,} validation pictures, against {shorten(result.reference, NAME)}, "
        f"trained {seeds} time{'' if seeds == 1 else 's'}"
    )
    failed = tuple(f"{arm.name} failed" for arm in result.arms if arm.failures)  # told in a section of their own
    notes = [tag("li", shorten(note, 300)) for note in result.notes if not note.startswith(failed)]
    return join(
        paragraph(summary(result), class_="lead"),
        table(["Arm", "Verdict", "In words"], rows, caption=caption) if rows else None,
        _how(result),
        tag("ul", *notes, class_="note") if notes else None,
    )


def _kind(result: Findings, name: str) -> str:
    return "failed" if result.arm(name).status == "failed" else result.verdict(name).kind


def _how(result: Findings) -> Html:
    """Return the box that explains the words."""
    spec = result.spec(result.metric)
    share = spec is not None and spec.share
    of = "picture" if result.metric in result.binary else "part"
    cut = " It is cut at 100 points, all that there can be." if share else ""
    told = [(word, text.format(of=of, cut=cut)) for word, text in HOW if share or word != "Points"]
    lines = [tag("p", tag("strong", word), f": {text}", style="max-width: none") for word, text in told]
    return tag("div", tag("div", paragraph(tag("strong", "How to read this")), *lines), class_="facts")
