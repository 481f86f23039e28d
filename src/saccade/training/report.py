"""The report of a run: model, data, settings, results and errors."""

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ..data.open import Data
from ..data.spec import InputSpec
from ..report.axes import number
from ..report.chart import line_chart
from ..report.markup import Html, breakable, join, shorten, tag
from ..report.page import Section, facts, fold, grid, next_section, paragraph, render_page, table, typed
from ..runs.run import Run, RunError
from ..settings import AugmentConfig, ConfigError, TrainConfig, flatten
from ..settings.decisions import Decision, latest, read_decisions
from ..support.files import write_text
from ..support.wording import count_of
from ..tasks import Task
from ..tasks.opening import choose_task, open_samples
from ..tasks.page import Shown
from ..tasks.presenter import Presenter
from .recipes import configure

# Derived from data and device if not given; some do not apply to text.
AUTOMATIC = {"data.img_size", "data.mean", "data.std", "data.workers", "engine.compile", "engine.graphs"}
OF_IMAGES = ("data.img_size", "data.mean", "data.std", "engine.channels_last")
UNREAD = "Samples that could not be read"
CHARTS = 9  # most metric charts
LISTED = 200  # most rows of a list
SETTINGS = 200_000  # most characters of config.yaml


def write_report(run: Run, data: Data | None = None) -> Path:
    """Write a run's report.html from its folder; only example images need the dataset.

    Args:
        run: the run, finished or not.
        data: its dataset; None to show no images.
    """
    write_text(run.report, _render(run, data))
    return run.report


def render_live(run: Run, state: Html, more: Sequence[Section] = ()) -> str:
    """Render the live page of a run: progress, curves and settings."""
    config = run.config()
    shown, _ = _shown(run, config, None)
    lead = join(state, facts(_facts(config, shown)))
    reads = _kind(config, shown.summary).reader.reads
    sections = [_curves(config, shown), *more, _settings(run, config, reads)]
    return render_page(
        f"{shorten(config.model.name, 120)} on {shorten(shown.data, 120)}",
        [*sections, _next(run, reads) if run.finished() else _meanwhile(run)],
        kind="Training",
        lead=lead,
        foot=f"Updated live by saccade from the files in {run.path}.",
    )


def rewrite_report(path: str | Path) -> Path:
    """Rewrite the report of an existing run, with images if its dataset has not changed."""
    run = Run.open(path)
    config = run.config()
    try:
        data = open_samples(config.task, config.data)[1]
        same = data.val.fingerprint() == run.summary()["validation"]["fingerprint"]
    except (OSError, ValueError, KeyError):
        same = False
    return write_report(run, data if same else None)


def _render(run: Run, data: Data | None) -> str:
    config = run.config()
    shown, presenter = _shown(run, config, data)
    lead = [
        paragraph(presenter.sentence(shown), class_="lead"),
        facts([*presenter.facts(shown), *_facts(config, shown)]),
    ]
    if (about := presenter.about(shown)) is not None:
        lead.append(about)
    reads = _kind(config, shown.summary).reader.reads
    sections = [_curves(config, shown), *presenter.sections(shown), _left_out(run, shown.summary)]
    sections += [_settings(run, config, reads), _next(run, reads)]
    return render_page(
        f"{shorten(config.model.name, 120)} on {shorten(shown.data, 120)}",
        sections,
        kind="Training report",
        lead=join(*lead),
        foot=f"Written by saccade from the files in {run.path}.",
    )


def _next(run: Run, reads: str) -> Section:
    """Return the next commands after a training."""
    place = shlex.quote(str(run.path))
    judged = {f"saccade evaluate {place}": "every metric with its interval"}
    asked = {f"saccade predict {place} lines.txt --out answers.csv": "predictions for many texts"}
    if reads == "image":
        judged = {
            f"saccade evaluate {place} --robust": "every metric with its interval, also under noise and occlusion",
            f"saccade explain {place} IMAGE.jpg": "where the model looked",
        }
        asked = {f"saccade predict {place} FOLDER --out answers.csv": "predictions for many files"}
    elif reads == "text":
        judged[f'saccade explain {place} "A text."'] = "which words influenced the prediction"
    else:
        asked = {f"saccade predict {place} questions.csv --out answers.csv": "answers to many questions"}
    last = {
        f"saccade export {place}": "an ONNX file for other runtimes",
        f"saccade serve {place}": "a web page and an HTTP service",
    }
    return next_section(judged | asked | last)


def _meanwhile(run: Run) -> Section:
    """Return the commands that can be used during a training."""
    place = shlex.quote(str(run.path))
    return next_section(
        {
            f"saccade evaluate {place}": "evaluate the weights saved last; every command can use them",
            f"saccade train --resume {place}": "resume the training if it was stopped",
        }
    )


def _kind(config: TrainConfig, summary: Mapping[str, Any]) -> type[Task]:
    return choose_task(config.task or summary.get("task", "classify")).kind


def _shown(run: Run, config: TrainConfig, data: Data | None) -> tuple[Shown, Presenter]:
    """Return a run's results and its task's presenter."""
    summary = run.summary() if (run.path / "summary.json").exists() else {}
    kind = _kind(config, summary)
    plugins = f" with {', '.join(config.model.plugins)}" if config.model.plugins else ""
    scores = predictions = None
    with suppress(RunError):
        predictions = {name: value.numpy() for name, value in run.predictions().items()}
        scores = run.scores()
    outputs = summary.get("classes") or (list(data.outputs) if data else [])
    spec = InputSpec(tuple(outputs), 3, 1, [0.0], [1.0], task=kind.name)
    shown = Shown(
        model=join(tag("strong", shorten(config.model.name, 120)), shorten(plugins, 200)),
        data=summary.get("data") or (data.name if data else Path(config.data.path).name or "fashion_mnist (embedded)"),
        summary=summary,
        records=run.metrics(),
        outputs=outputs,
        metrics=tuple(scores.metrics.values()) if scores is not None else kind.metrics.metric_specs(spec),
        primary=summary.get("primary", kind.metrics.primary),
        scores={} if scores is None else scores.columns,
        predictions=predictions or {},
        source=None if data is None else data.val,
    )
    return shown, kind.presenter(spec)


def _facts(config: TrainConfig, shown: Shown) -> list[tuple[str, str, str]]:
    found, records, summary = [], shown.records, shown.summary
    spec = shown.metric(shown.primary)
    name = f"val_{shown.primary}"
    scored = [r for r in records if math.isfinite(r.get(name, math.nan))]
    if scored and spec is not None:
        best = (max if spec.larger_is_better else min)(scored, key=lambda r: r[name])
        last = (
            "the last epoch"
            if best is records[-1]
            else f"{spec.show(best[name])} there; the weights of the last epoch are kept"
        )
        found.append(("Best epoch", f"{best['epoch']}", last))
    if "kernels" in summary:
        found += _kernels(summary)
    if "parameters" in summary:
        found.append(("Parameters", _count(summary["parameters"]), f"{summary['parameters']:,}"))
    if records:
        seconds = sum(record.get("seconds", 0) for record in records)
        steps = f"{count_of(records[-1].get('step', 0), 'step')} in {_duration(seconds)}"
        if shorter := [record["epoch"] for record in records if "shortened_to" in record]:
            steps += f"; shortened in epoch {shorter[0]} to finish within the time budget: the machine became slower"
        found.append(("Epochs", f"{records[-1]['epoch']} of {config.schedule.epochs}", steps))
        speeds = [record["images_per_second"] for record in records if record.get("images_per_second")]
        if speeds:
            found.append(("Speed", f"{statistics.median(speeds):,.0f}", "samples/s in training, median over epochs"))
    return found


def _kernels(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the kernels a run used, if any, or why they failed."""
    names, failed = summary["kernels"], summary.get("kernels_failed")
    if not names and not failed:
        return []
    detail = ", ".join(names) or "plain PyTorch"
    return [
        ("Kernels", f"{len(names)}", detail if failed is None else f"{detail}; disabled because they failed: {failed}")
    ]


def _curves(config: TrainConfig, shown: Shown) -> Section:
    records = shown.records
    if not records:
        return Section("curves", "Curves", paragraph("No epoch has finished.", class_="note"))

    def points(name: str) -> list[tuple[float, float]]:
        return [(record["epoch"], record[name]) for record in records if record.get(name) is not None]

    def chart(title: str, y_label: str, names: dict[str, str], *, zero: bool = False, percent: bool = False) -> Html:
        series = {label: found for label, name in names.items() if (found := points(name))}
        return line_chart(series, title=title, x_label="epoch", y_label=y_label, zero=zero, percent=percent)

    first = chart("Loss", "loss", {"training": "train_loss", "validation": "val_loss"})
    charts = []
    for spec in shown.metrics:
        names = {"training": f"train_{spec.name}", "validation": f"val_{spec.name}"}
        if spec.name != "loss" and any(points(name) for name in names.values()):
            unit = f"{spec.words}{f', {spec.unit}' if spec.unit else ''}"
            charts.append(chart(spec.title, unit, names, percent=spec.share))
    last = [
        chart("Learning rate", "at the end of the epoch", {"learning rate": "lr"}, zero=True),
        chart("Speed", "samples per second in training", {"speed": "images_per_second"}, zero=True),
    ]
    augment = config.augment
    mixed = augment.mixup > 0 or augment.cutmix > 0
    how = ", on augmented samples: they can be worse than the validation values."
    if mixed:
        how = ", on mixed samples: they cannot be compared with the validation values."
    elif augment == AugmentConfig(crop="none", flip=0.0):  # no random augmentation
        how = "."
    about = f"Training values are means over an epoch, while the weights change{how}"
    more = fold("The other curves", grid(*charts[CHARTS:])) if len(charts) > CHARTS else None
    drawn = grid(first, *charts[:CHARTS], *last)
    return Section("curves", "Curves", join(paragraph(about), drawn, more, _epochs(records)))


def _epochs(records: Sequence[Mapping[str, Any]]) -> Html:
    every = -(-len(records) // LISTED)
    names = list(dict.fromkeys(name for record in records for name in record))
    shown = [record for i, record in enumerate(records) if i % every == 0 or i == len(records) - 1]
    rows = [[_value(record.get(name)) for name in names] for record in shown]
    caption = "Every epoch" if every == 1 else f"Every {every}th epoch and the last; all are in metrics.csv"
    return fold("The numbers", table(names, rows, caption=caption, numeric=range(len(names))))


def _left_out(run: Run, summary: Mapping[str, Any]) -> Section:
    bad = summary.get("bad_samples", summary.get("bad_pictures"))  # the key in earlier versions
    if bad is None and run.bad_file.exists():
        bad = json.loads(run.bad_file.read_text(encoding="utf-8"))
    if not bad:
        detail = (
            "None: every sample could be read." if bad is not None else "The run does not record unreadable samples."
        )
        return Section("left-out", UNREAD, paragraph(detail))
    rows = [[shorten(str(name), 200), shorten(str(reason), 400)] for name, reason in list(bad.items())[:LISTED]]
    caption = f"{len(bad):,} sample{'s' if len(bad) > 1 else ''} that could not be read"
    caption += f"; the first {LISTED} are shown, all are in bad_samples.json" if len(bad) > LISTED else ""
    return Section("left-out", UNREAD, table(["Sample", "Why"], rows, caption=caption))


def _who(one: Decision | None) -> str:
    """Return what set a value, and why."""
    return "" if one is None else one.who if one.who == "you" else f"{one.who}: {one.why}"


def _settings(run: Run, config: TrainConfig, reads: str) -> Section:
    base, name = _base(config)
    silent = ("recipe", *(OF_IMAGES if reads == "text" else ()))
    here, there = flatten(config), flatten(base)
    decided = latest(read_decisions(run.path), config)
    rows = [
        [
            tag("code", breakable(key)),
            _setting(value),
            _setting(there[key], automatic=key in AUTOMATIC),
            *([_who(decided.get(key))] if decided else []),
        ]
        for key, value in here.items()
        if key not in silent and value != there[key]
    ]
    heads = ["Setting", "This run", f"{name[:1].upper()}{name[1:]}", *(["Set by"] if decided else [])]
    again = f"saccade train --recipe {shlex.quote(str(run.settings))} --out {shlex.quote(f'{run.path}-again')}"
    text = run.settings.read_text(encoding="utf-8")
    whole = text if len(text) <= SETTINGS else text[:SETTINGS] + "\n…"
    parts = [
        table(heads, rows, caption=f"Differences from the {name}")
        if rows
        else paragraph(f"All settings equal those of the {name}."),
        fold("All settings (config.yaml)", tag("pre", tag("code", whole))),
        tag("h3", "Repeat this run"),
        tag("pre", typed(again)),
        paragraph(
            f"Run it from the folder it was started in; the seed ({config.seed}) is in the settings. To build the "
            "model: ",
            tag("code", f"saccade.load_model({str(run.path)!r})"),
            ".",
            class_="note",
        ),
    ]
    return Section("settings", "Settings", join(*parts))


def _base(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the settings to compare with, and their name."""
    try:
        return configure(
            config.recipe, {"model.name": config.model.name}
        ), f"recipe {shorten(config.recipe or 'small', 120)}"
    except (ConfigError, OSError):
        return TrainConfig(), "defaults"


def _setting(value: Any, *, automatic: bool = False) -> str:
    if value is None or value == "auto":
        return "automatic" if automatic or value else "none"
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return shorten(text.removesuffix("\n").removesuffix("\n...") or "(empty)", 300)


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value)
    return str(value)


def _count(value: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return str(value)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
