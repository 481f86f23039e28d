"""The closing report of a run: what was trained on what, with which result, and where it fails."""

import json
import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..config import ConfigError, TrainConfig, flatten
from ..data.open import Data, open_configured
from ..data.picture import BadPicture
from ..report.answers import calibration_section, class_section, confusion_section, picture_section
from ..report.axes import number
from ..report.chart import line_chart
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, facts, fold, grid, paragraph, render_page, table
from ..report.tally import Answered, wilson
from ..runs import Run, RunError, write_text

# Filled in from the data and the device where they are not given.
AUTOMATIC = {"data.img_size", "data.mean", "data.std", "data.workers", "engine.compile", "engine.graphs"}
LISTED = 200  # rows of a list that may be long
SETTINGS = 200_000  # characters of config.yaml


def write_report(run: Run, data: Data | None = None) -> Path:
    """Write a run's report.html, from its folder alone except for the pictures shown.

    Args:
        run: finished or not; what it does not hold is left out.
        data: what it was trained on; None to show no pictures.
    """
    write_text(run.report, _render(run, data))
    return run.report


def rewrite_report(path: str | Path) -> Path:
    """Write the report of an existing run again, with pictures if its data are still what they were."""
    run = Run.open(path)
    config = run.config()
    try:
        data = open_configured(config.data)
        same = data.val.fingerprint() == run.summary()["validation"]["fingerprint"]
    except (OSError, ValueError, KeyError):
        same = False
    return write_report(run, data if same else None)


def _render(run: Run, data: Data | None) -> str:
    config, records = run.config(), run.metrics()
    summary = run.summary() if (run.path / "summary.json").exists() else {}
    answered = _answered(run)
    classes = _classes(summary, data, answered)
    sections = [_curves(config, records)]
    if answered is not None and len(answered):
        sections += [class_section(answered, classes), confusion_section(answered, classes)]
        sections += [calibration_section(answered), *_pictures(answered, classes, data)]
    sections += [_left_out(run, summary), _settings(run, config)]
    name = summary.get("data") or (data.name if data else config.data.path or "fashion_mnist (embedded)")
    lead = [paragraph(_sentence(config, summary, answered, classes, name), class_="lead")]
    lead += [facts(_facts(config, records, summary))]
    if summary:
        lead += [paragraph(ABOUT_INTERVAL, class_="note")]
    return render_page(
        f"{shorten(config.model.name, 120)} on {shorten(name, 120)}",
        sections,
        kind="Training report",
        lead=join(*lead),
        foot=f"Written by saccade from the files in {run.path}.",
    )


ABOUT_INTERVAL = (
    "The interval (Wilson) says how far accuracy could be off because these validation pictures were taken and not "
    "others of the same kind. It says nothing about another seed, nor about pictures of another kind."
)


def _answered(run: Run) -> Answered | None:
    try:
        kept = run.predictions()
    except RunError:
        return None
    names = ("place", "label", "prediction", "confidence", "loss")
    return Answered(*(kept[name].numpy() for name in names))


def _classes(summary: dict[str, Any], data: Data | None, answered: Answered | None) -> list[str]:
    known = summary.get("classes") or (list(data.classes) if data else [])
    most = (
        0 if answered is None or not len(answered) else int(max(answered.labels.max(), answered.predictions.max())) + 1
    )
    return [str(name) for name in known] + [f"class {index}" for index in range(len(known), most)]


def _result(summary: dict[str, Any]) -> tuple[int, int] | None:
    """Return right answers and pictures."""
    count = summary.get("validation", {}).get("pictures", 0)
    share = summary.get("val_top1", math.nan)
    return (round(share * count), count) if count and math.isfinite(share) else None


def _sentence(
    config: TrainConfig, summary: dict[str, Any], answered: Answered | None, classes: Sequence[str], name: str
) -> Html:
    plugins = f" with {', '.join(config.model.plugins)}" if config.model.plugins else ""
    model = join(tag("strong", shorten(config.model.name, 120)), shorten(plugins, 200))
    result = _result(summary)
    if result is None:
        return join(
            model, f" was trained on {shorten(name, 120)}; the run has not come to its end, so there is no result yet."
        )
    correct, count = result
    low, high = wilson(correct, count)
    told = join(
        model,
        f", trained on {shorten(name, 120)}, names the right class for ",
        tag("strong", f"{correct / count:.1%}"),
        f" of {count:,} validation pictures of {len(classes):,} classes (95% interval {low:.1%} to {high:.1%}).",
    )
    if answered is None or not len(answered):
        return told
    commonest = float(np.bincount(answered.labels).max() / len(answered))
    verdict = "" if low > commonest else " It has not been shown to do better than that."
    return join(told, f" Always answering the most frequent class would be right in {commonest:.1%}.{verdict}")


def _facts(
    config: TrainConfig, records: Sequence[dict[str, Any]], summary: dict[str, Any]
) -> list[tuple[str, str, str]]:
    found = []
    if result := _result(summary):
        low, high = wilson(*result)
        found.append(("Accuracy", f"{summary['val_top1']:.2%}", f"95% interval {low:.1%} to {high:.1%}"))
    if "val_top5" in summary:
        found.append(("Top-5 accuracy", f"{summary['val_top5']:.2%}", ""))
    if "val_loss" in summary:
        found.append(("Validation loss", number(summary["val_loss"]), "cross-entropy"))
    best = max(
        (r for r in records if math.isfinite(r.get("val_top1", math.nan))), key=lambda r: r["val_top1"], default=None
    )
    if best is not None:
        last = "it is the last" if best is records[-1] else f"{best['val_top1']:.2%} there; the last is kept"
        found.append(("Best epoch", f"{best['epoch']}", last))
    if "parameters" in summary:
        found.append(("Parameters", _count(summary["parameters"]), f"{summary['parameters']:,}"))
    if records:
        seconds = sum(record.get("seconds", 0) for record in records)
        steps = f"{records[-1].get('step', 0):,} steps in {_duration(seconds)}"
        found.append(("Epochs", f"{records[-1]['epoch']} of {config.schedule.epochs}", steps))
        speeds = [record["images_per_second"] for record in records if record.get("images_per_second")]
        if speeds:
            found.append(("Speed", f"{statistics.median(speeds):,.0f}", "images/s in training, median epoch"))
    return found


def _curves(config: TrainConfig, records: Sequence[dict[str, Any]]) -> Section:
    if not records:
        return Section("curves", "Curves", paragraph("No epoch was finished.", class_="note"))

    def points(name: str) -> list[tuple[float, float]]:
        return [(record["epoch"], record[name]) for record in records if record.get(name) is not None]

    def chart(title: str, y_label: str, names: dict[str, str], *, zero: bool = False, percent: bool = False) -> Html:
        series = {told: found for told, name in names.items() if (found := points(name))}
        return line_chart(series, title=title, x_label="epoch", y_label=y_label, zero=zero, percent=percent)

    charts = [
        chart("Loss", "cross-entropy", {"training": "train_loss", "validation": "val_loss"}),
        chart("Accuracy", "right answers", {"training": "train_top1", "validation": "val_top1"}, percent=True),
        chart("Learning rate", "at the end of the epoch", {"learning rate": "lr"}, zero=True),
        chart("Speed", "images a second, in training", {"speed": "images_per_second"}, zero=True),
    ]
    augment = config.augment
    mixed = augment.mixup > 0 or augment.cutmix > 0
    about = "Training values are means over an epoch, while the weights change" + (
        ", on pictures that are mixed: they cannot be held against the validation values."
        if mixed
        else ", on augmented pictures: they can be worse than the validation values."
    )
    return Section("curves", "Curves", join(paragraph(about), grid(*charts), _epochs(records)))


def _epochs(records: Sequence[dict[str, Any]]) -> Html:
    every = -(-len(records) // LISTED)
    names = list(dict.fromkeys(name for record in records for name in record))
    shown = [record for i, record in enumerate(records) if i % every == 0 or i == len(records) - 1]
    rows = [[_value(record.get(name)) for name in names] for record in shown]
    caption = "Every epoch" if every == 1 else f"Every {every}th epoch and the last; all are in metrics.csv"
    return fold("The numbers", table(names, rows, caption=caption, numeric=range(len(names))))


def _pictures(answered: Answered, classes: Sequence[str], data: Data | None) -> list[Section]:
    if data is None:
        told = "The validation pictures were not at hand when this page was written."
        return [Section("pictures", "The worst pictures", paragraph(told, class_="note"))]
    val = data.val
    if answered.places.max() >= len(val) or not np.array_equal(val.labels[answered.places], answered.labels):
        told = "The validation pictures are not those of the run any more, so none are shown."
        return [Section("pictures", "The worst pictures", paragraph(told, class_="note"))]

    def read(place: int) -> np.ndarray | None:
        try:
            return val.read(place)
        except (BadPicture, OSError):
            return None

    return [picture_section(answered, classes, read=read, name=val.name)]


def _left_out(run: Run, summary: dict[str, Any]) -> Section:
    bad = summary.get("bad_pictures")
    if bad is None and run.bad_file.exists():
        bad = json.loads(run.bad_file.read_text(encoding="utf-8"))
    if not bad:
        told = "None: every picture could be read." if bad is not None else "The run does not tell."
        return Section("left-out", "Pictures left out", paragraph(told))
    rows = [[shorten(str(name), 200), shorten(str(reason), 400)] for name, reason in list(bad.items())[:LISTED]]
    caption = f"{len(bad):,} picture{'s' if len(bad) > 1 else ''} that could not be read"
    caption += f"; the first {LISTED}, all are in bad_pictures.json" if len(bad) > LISTED else ""
    return Section("left-out", "Pictures left out", table(["Picture", "Why"], rows, caption=caption))


def _settings(run: Run, config: TrainConfig) -> Section:
    base, name = _base(config)
    here, there = flatten(config), flatten(base)
    rows = [
        [tag("code", key), _setting(value), _setting(there[key], automatic=key in AUTOMATIC)]
        for key, value in here.items()
        if key != "recipe" and value != there[key]
    ]
    again = f"saccade train --recipe {shlex.quote(str(run.settings))} --out {shlex.quote(f'{run.path}-again')}"
    text = run.settings.read_text(encoding="utf-8")
    whole = text if len(text) <= SETTINGS else text[:SETTINGS] + "\n…"
    parts = [
        table(["Setting", "This run", name.capitalize()], rows, caption=f"What differs from the {name}")
        if rows
        else paragraph(f"All settings are those of the {name}."),
        fold("All settings (config.yaml)", tag("pre", tag("code", whole))),
        tag("h3", "To repeat it"),
        tag("pre", tag("code", again)),
        paragraph(
            f"From the folder it was started in; the seed ({config.seed}) is in the settings. To build the model: ",
            tag("code", f"saccade.load_model({str(run.path)!r})"),
            ".",
            class_="note",
        ),
    ]
    return Section("settings", "Settings", join(*parts))


def _base(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the settings to compare with, and what they are called."""
    from .train import configure

    try:
        return configure(config.recipe, {}), f"recipe {shorten(config.recipe or 'small', 120)}"
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
