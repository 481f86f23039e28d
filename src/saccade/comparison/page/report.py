"""The report of a comparison, for readers without knowledge of statistics."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...data.source import Source
from ...report.chart import Point, line_chart, scatter
from ...report.document import Block, Text, to_html
from ...report.image import encode_image
from ...report.markup import Html, join, shorten, tag
from ...report.page import Section, fold, grid, next_section, paragraph, render_page, typed
from ...runs.run import Run
from ...support.files import read_record, write_text
from ..conclude.evidence import epoch_seconds
from ..conclude.findings import Disagreement
from ..plan.folds import mean_records, runs_of_pass
from . import tables
from .result import Comparison
from .words import MAX_NAME, capital, how_to_read, summary, title, verdicts

IMAGES = 6  # most gains and losses of an arm, each
RAW = 300_000  # most characters of result.json

Records = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]


def write_report(result: Comparison, source: Source | None = None) -> Path:
    """Write report.html; without a source, no images are shown."""
    file = result.path / "report.html"
    write_text(file, render_report(result, source=source, records=read_records(result), request=read_request(result)))
    return file


def render_report(
    result: Comparison,
    *,
    source: Source | None = None,
    records: Records | None = None,
    request: Mapping[str, Any] | None = None,
) -> str:
    """Render the page; missing parts are left out."""
    found: dict[tuple[str, str], list[Block]] = {
        ("intervals", "The differences"): tables.differences(result),
        ("curves", "Learning curves"): curves(result, records or {}),
        ("tuning", "How the arms were tuned"): tables.tuning(result.tuned),
        ("costs", "Cost against gain"): [*gain_by_cost(result), tables.costs(result), *tables.at_equal_time(result)],
        ("classes", "Class by class"): tables.classes(result),
        ("pictures", "Samples they disagree on"): disagreeing(result, source),
        ("settings", "What differs and what is held equal"): tables.settings(result),
        ("failures", "Failures"): tables.failures(result),
        ("repeat", "To repeat it"): repeat(result, request),
    }
    sections = [Section(key, name, to_html(blocks)) for (key, name), blocks in found.items() if blocks]
    return render_page(
        title(result),
        [*sections, _next(result)],
        kind="Comparison",
        lead=_lead(result),
        foot=f"Written by saccade from the files in {result.path}.",
    )


def _next(result: Comparison) -> Section:
    runs = [next(iter(arm.runs.values())) for arm in result.arms if arm.runs]
    places = " ".join(shlex.quote(str(path)) for path in runs[:2])
    commands = {"the same command with --seeds raised": "sharper intervals; finished runs are kept"}
    if places:
        commands |= {
            f"saccade evaluate {places} --robust": "two runs side by side under noise and attacks",
            f"saccade serve {places}": "two models on one page",
        }
    return next_section(commands)


def read_records(result: Comparison) -> Records:
    """Return the runs' metrics by arm and seed, averaged over folds; unreadable runs are left out."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    folds = (read_request(result) or {}).get("folds")
    for arm in result.arms:
        for seed, path in arm.runs.items():
            runs = runs_of_pass(Path(path), seed, folds) if folds else [Path(path)]
            with suppress(OSError, ValueError):
                measured = [Run(run).metrics() for run in runs]
                found.setdefault(arm.name, {})[seed] = mean_records(measured) if folds else measured[0]
    return found


def read_request(result: Comparison) -> dict[str, Any] | None:
    """Return the request of comparison.json; None if it cannot be read."""
    return read_record(result.path / "comparison.json").get("request")


def _lead(result: Comparison) -> Html:
    lines = [tag("p", tag("strong", word), f": {text}", style="max-width: none") for word, text in how_to_read(result)]
    how = tag("div", tag("div", paragraph(tag("strong", "How to read this")), *lines), class_="facts")
    notes = [tag("li", shorten(str(note), 300)) for note in result.notes if note.kind != "failure"]  # notes of sections
    return join(
        to_html([Text(summary(result), "lead"), verdicts(result)]),
        how,
        tag("ul", *notes, class_="note") if notes else None,
    )


def curves(result: Comparison, records: Records) -> list[Block]:
    """Return learning curves of the arms, by epoch and by time."""
    distinct = [arm.name for arm in result.arms if arm.identical_to is None]
    found = {name: [list(one) for one in records.get(name, {}).values() if one] for name in distinct}
    charts = []
    for metric in dict.fromkeys([result.primary or result.metric, result.metric]):
        field, spec = f"val_{metric}", result.spec(metric)
        right = metric == result.primary and metric in result.binary
        label = "right answers" if right else result.words(metric)
        for x_label in ("epoch", "seconds of training"):
            lines = {name: _curve(trained, field, timed=x_label != "epoch") for name, trained in found.items()}
            lines = {name: line for name, line in lines.items() if line}
            if lines:
                chart = line_chart(
                    {name: [(at, mean) for at, mean, _, _ in line] for name, line in lines.items()},
                    bands={name: [(at, low, high) for at, _, low, high in line] for name, line in lines.items()},
                    title=f"{capital(label)} in validation, by {x_label}",
                    x_label=x_label,
                    y_label=label,
                    percent=spec is not None and spec.share,
                )
                charts.append(chart)
    if not charts:
        return [Text("The training curves of the runs were not available.", "note")]
    about = (
        "The line is the mean over seeds; the band spans the worst to the best seed. Overlapping bands alone are not "
        "conclusive: verdicts compare the arms seed by seed, after the last epoch."
    )
    return [Text(about), grid(*charts)]


def _curve(
    runs: Sequence[Sequence[Mapping[str, Any]]], field: str, *, timed: bool
) -> list[tuple[float, float, float, float]]:
    """Return epoch or seconds, mean, minimum and maximum over seeds, for epochs validated by all."""
    seeds = []
    for run in runs:
        seconds = np.cumsum(epoch_seconds(run)).tolist()
        pairs = zip(run, seconds if timed else [float(record["epoch"]) for record in run], strict=True)
        seeds.append({r["epoch"]: (at, float(r[field])) for r, at in pairs if isinstance(r.get(field), int | float)})
    shared = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    curve = []
    for epoch in shared:
        at, values = zip(*(seed[epoch] for seed in seeds), strict=True)
        curve.append((sum(at) / len(at), sum(values) / len(values), min(values), max(values)))
    return curve


def gain_by_cost(result: Comparison) -> list[Block]:
    """Return a chart of the arms' gain against cost."""
    places, d = [], None
    for name, judged in result.differences.items():
        ratio = result.costs[name].step_ratio if name in result.costs else None
        if ratio is not None and math.isfinite(ratio.ratio):
            d = judged.difference
            places.append(Point(ratio.ratio, d.scaled(d.mean), name))
    if d is None:
        return []
    text = (
        f"{'Up' if d.larger_is_better else 'Down'} and to the left is best: a larger gain at a lower cost. The "
        "reference is at 1 and 0. Each dot has an interval of its own, listed in the tables."
    )
    chart = scatter(
        {"reference": [Point(1.0, 0.0, result.reference)], "arms": places},
        title="Gain by cost",
        x_label="seconds per step, relative to the reference",
        y_label=f"difference in {result.words(result.metric)}{f', {d.unit_name}' if d.unit_name else ''}",
    )
    return [Text(text), chart]


def disagreeing(result: Comparison, source: Source | None) -> list[Block]:
    """Return the section on images on which arms disagree; only their names without a source."""
    blocks: list[Block] = []
    for table, found in tables.disagreements(result, IMAGES):
        items = []
        for one, (name, label, *scores) in zip(found, table.rows, strict=True):
            pixels = None if source is None else _read(source, one)
            image = None if pixels is None else encode_image(pixels, alt=f"{shorten(one.name, 120)}: {one.label}")
            arms = zip(table.columns[2:], scores, strict=True)
            items.append(
                tag(
                    "li",
                    None if image is None else tag("div", image, class_="frame"),
                    paragraph(tag("strong", shorten(str(label), MAX_NAME))),
                    *(paragraph(f"{shorten(arm, MAX_NAME)}: {score}") for arm, score in arms),
                    paragraph(shorten(str(name), 120), class_="name"),
                )
            )
        blocks += [Text(table.caption, "heading"), tag("ol", *items, class_="pictures")]
    return [tables.disagreements_text(result), *blocks] if blocks else []


def _read(source: Source, one: Disagreement) -> np.ndarray | None:
    """Read an image, if it has not changed."""
    try:
        if source.name(one.place) != one.name or source.targets.describe(one.place) != one.label:
            return None
        return source.read(one.place)
    except (OSError, ValueError, IndexError):
        return None


def repeat(result: Comparison, request: Mapping[str, Any] | None) -> list[Block]:
    """Return the section with the command to repeat the comparison, and its raw results."""
    blocks: list[Block] = []
    if request is not None:
        blocks += [Text("From the directory it was started in, into a new directory:")]
        blocks += [tag("pre", typed(repeat_command(result, request)))]
        if only := _only_python(result, request):
            blocks += [
                Text(
                    f"{', '.join(only)} cannot be set on the command line; pass it to saccade.compare in Python.",
                    "note",
                )
            ]
        asked = json.dumps(request, indent=1, ensure_ascii=False)
        blocks += [fold("Request (comparison.json)", tag("pre", tag("code", asked)))]
    raw = result.to_json()
    whole = raw if len(raw) <= RAW else raw[:RAW] + "\n… the rest is in result.json"
    blocks += [tables.runs(result), fold("The plan as printed", tag("pre", tag("code", str(result.plan))))]
    return [*blocks, fold("All numbers (result.json)", tag("pre", tag("code", whole)))]


def repeat_command(result: Comparison, request: Mapping[str, Any]) -> str:
    """Return the command that repeats the comparison in another folder."""
    words = ["saccade", "compare", *([str(request["data"])] if request.get("data") else [])]
    for name, text in request["arms"].items():
        words += ["--arm", text if text == name else f"{name}:={text}"]
    seeds = request["seeds"]
    if seeds is not None:
        words += ["--seeds", str(len(seeds)) if seeds == list(range(len(seeds))) else ",".join(map(str, seeds))]
    words += ["--folds", str(request["folds"])] if request.get("folds") else []
    words += ["--repeats", str(request["repeats"])] if request.get("repeats", 1) != 1 else []
    words += ["--recipe", str(request["recipe"])] if request.get("recipe") else []
    for name, value in request["settings"].items():
        words += ["--task", str(value)] if name == "task" else ["--set", f"{name}={_written(value)}"]
    words += ["--budget", f"{request['budget']:.0f}s"] if request.get("budget") is not None else []
    words += ["--tune", f"{request['tune']:.0f}s"] if request.get("tune") is not None else []
    words += ["--metric", result.metric] if result.metric != result.primary else []
    differences = [judged.difference for judged in result.differences.values()]
    words += ["--margin", f"{differences[0].margin:g}"] if differences and differences[0].margin is not None else []
    words += ["--seeds-fixed"] if any(d.design == "fixed" for d in differences) else []
    return shlex.join([*words, "--out", f"{result.path}-again"])


def _only_python(result: Comparison, request: Mapping[str, Any]) -> list[str]:
    """Return the arguments without a flag."""
    found, seeds, spec = [], request["seeds"], result.spec(result.metric)
    if seeds is not None and len(seeds) == 1 and seeds != [0]:
        found.append(f"seeds={seeds}")
    for name, judged in result.differences.items():
        too_few = any(note.kind == "unpaired" and note.arm == name for note in result.notes)
        if judged.difference.design == "unpaired" and not too_few:
            found.append("paired=False")
        if spec is None or judged.difference.larger_is_better != spec.larger_is_better:
            found.append(f"larger_is_better={judged.difference.larger_is_better}")
    return list(dict.fromkeys(found))


def _written(value: Any) -> str:
    """Return a setting as YAML that reads back as the same value."""
    return yaml.safe_dump(value, default_flow_style=True, width=100_000).removesuffix("\n").removesuffix("\n...")
