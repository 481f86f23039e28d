"""The pages of `sweep.py`: tables and curves of all trials."""

import csv
import json
import warnings
from pathlib import Path
from typing import Any

MODELS = {  # of each family one; patches of small images are those that the recipe gives it
    "nommer": "nommer_tiny",
    "cvt": "cvt_13",
    "swin": "swin_tiny_patch4_window7_224",
    "vit": "vit_tiny_patch16_224",
    "glnet": "glnet_nano",
    "resnet": "resnet18",
    "convnext": "convnext_atto",
    "pit": "pit_ti_224",
    "mixer": "mixer_s16_224",
    "efficientnet": "efficientnet_b0",
    "t2t": "t2t_vit_7",
    "sot": "sot_7",
}
COARSE = (1e-3, 2.5e-4, 4e-3)


def own_rate(name: str, samples: int) -> float:
    """Return the rate that a family's model gets by itself for so many images, before it is scaled to their batches."""
    from saccade.settings.families import family_of
    from saccade.settings.sizes import batch_for
    from saccade.training.recipes import configure

    usual, family = configure("small", {}), family_of("small", MODELS[name])
    assert family is not None
    few = batch_for(usual, samples)[0] < usual.optim.batch_size
    return float(family.few_rate if few and family.few_rate is not None else family.settings["optim"]["lr"])


def best_rate(scores: dict[float, float]) -> float:
    return max(scores, key=lambda rate: scores[rate]) if scores else COARSE[0]


def read_records(folder: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                warnings.warn(f"{file}: a torn line is left out", stacklevel=2)
    return found


def write_pages(folder: Path) -> None:
    """Write the curves as a table, as CSV and as a page."""
    from saccade.report.chart import line_chart
    from saccade.report.document import Block, Text, to_html, to_markdown
    from saccade.report.page import Section, grid, render_page
    from saccade.settings import flatten
    from saccade.training.recipes import configure

    usual = flatten(configure("small", {}))
    records = read_records(folder)
    for record in records:  # without what is the recipe's own
        told = record["values"].items()
        record["values"] = {name: value for name, value in told if name == "optim.lr" or value != usual[name]}
    fields = ("set", "family", "model", "values", "seed", "epochs", "samples", "judged_on", "batch_size", "score")
    with open(folder / "sweep.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*fields, "failed", "seconds"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**record, "values": json.dumps(record["values"])} for record in records)
    sections, blocks = [], []
    for name in dict.fromkeys(record["set"] for record in records):
        of = [record for record in records if record["set"] == name]
        lengths = _swept_lengths(of)
        made: list[Block] = [_defaults(of), *(_rates(of, epochs) for epochs in reversed(lengths))]
        made += [_others(of)] if any(len(record["values"]) > 1 for record in of) else []
        charts = []
        for family in dict.fromkeys(record["family"] for record in of):
            lines, bands = {}, {}
            for epochs in lengths:
                points = _by_rate([record for record in of if record["family"] == family], epochs)
                if points:
                    word = f"{epochs} epochs"
                    lines[word] = [(_place(rate), sum(scores) / len(scores)) for rate, scores in sorted(points.items())]
                    bands[word] = [(_place(rate), min(scores), max(scores)) for rate, scores in sorted(points.items())]
            title = f"{family}: score against rate"
            axes = {"x_label": "doublings of 1e-3", "y_label": "accuracy"}
            charts.append(line_chart(lines, bands=bands, title=title, percent=True, **axes))
        about = (
            f"{len(of)} trials of {_range(of, 'epochs')} epochs on {_range(of, 'samples')} training images, "
            f"judged on {_range(of, 'judged_on')} others of them; batches of {_range(of, 'batch_size')}, recipe small. "
            "A line is the mean over seeds, its band reaches from the worst to the best."
        )
        blocks += [Text(name, "heading"), Text(about), *made]
        sections.append(Section(name, name, to_html([Text(about), grid(*charts), *made])))
    (folder / "sweep.md").write_text(f"# Score against rate\n\n{to_markdown(blocks)}\n", encoding="utf-8")
    page = render_page("Score against rate, family by family", sections, kind="Sweep")
    (folder / "sweep.html").write_text(page, encoding="utf-8")


def _swept_lengths(records: list[dict[str, Any]]) -> list[int]:
    """Return the epochs that several rates of a family were trained for."""
    rates: dict[tuple[str, int], set[float]] = {}
    for record in records:
        if list(record["values"]) == ["optim.lr"]:
            rates.setdefault((record["family"], record["epochs"]), set()).add(record["values"]["optim.lr"])
    return sorted({epochs for (_, epochs), found in rates.items() if len(found) > 1})


def _by_rate(records: list[dict[str, Any]], epochs: int) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for record in records:
        if list(record["values"]) == ["optim.lr"] and record["epochs"] == epochs:
            found.setdefault(record["values"]["optim.lr"], []).append(record["score"] or 0.0)
    return found


def _range(records: list[dict[str, Any]], name: str) -> str:
    least, most = min(record[name] for record in records), max(record[name] for record in records)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _defaults(records: list[dict[str, Any]]) -> Any:
    """Return how far what a family gets by itself is from the best rate that was tried for as many epochs.

    Seeds hold out images of their own, some easier than others, so that rates are told apart on seeds that both have.
    """
    from saccade.report.document import Table

    rows = []
    for name in dict.fromkeys(record["family"] for record in records):
        of = [record for record in records if record["family"] == name]
        longest, own = max(_swept_lengths(of)), own_rate(name, of[0]["samples"])
        curve: dict[float, dict[int, float]] = {}
        for record in of:
            if record["epochs"] == longest and list(record["values"]) == ["optim.lr"]:
                curve.setdefault(record["values"]["optim.lr"], {})[record["seed"]] = 100 * (record["score"] or 0.0)
        if own not in curve:
            continue
        shared = {rate: sorted({*curve[own]} & {*scores}) for rate, scores in curve.items()}
        most = max(len(seeds) for rate, seeds in shared.items() if rate != own)
        gains = {
            rate: _mean([curve[rate][seed] - curve[own][seed] for seed in seeds])
            for rate, seeds in shared.items()
            if len(seeds) == most or rate == own
        }
        best = max(gains, key=lambda rate: gains[rate])
        cells = [f"{rate:g}: {_mean([curve[rate][seed] for seed in shared[best]]):.1f}" for rate in (own, best)]
        rows.append((name, *cells, str(len(shared[best])), f"{0.0 - gains[best]:+.1f}"))
    return Table(
        "Rate that a model gets by itself, and the best of those with as many seeds: accuracy in percent after the "
        "most epochs, over the seeds that both have",
        ("Family", "Its own", "Best", "Seeds", "Points"),
        tuple(rows),
        (3, 4),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _rates(records: list[dict[str, Any]], epochs: int) -> Any:
    from saccade.report.document import Table

    families = list(dict.fromkeys(record["family"] for record in records))
    curves = {name: _by_rate([one for one in records if one["family"] == name], epochs) for name in families}
    rates = sorted({rate for curve in curves.values() for rate in curve})
    rows = []
    for family, curve in curves.items():
        best = max(curve, key=lambda rate: sum(curve[rate]) / len(curve[rate])) if curve else 0.0
        cells = [_cell(curve.get(rate), mark=rate == best) for rate in rates]
        if curve:
            rows.append((family, *cells))
    columns = ("Family", *(f"{rate:g}" for rate in rates))
    return Table(
        f"Accuracy in percent by rate after {epochs} epochs; the best is marked by *",
        columns,
        tuple(rows),
        tuple(range(1, len(columns))),
    )


def _cell(scores: list[float] | None, *, mark: bool) -> str:
    if not scores:
        return ""
    seeds = f" ({len(scores)} seeds)" if len(scores) > 1 else ""
    return f"{100 * sum(scores) / len(scores):.1f}{'*' if mark else ''}{seeds}"


def _others(records: list[dict[str, Any]]) -> Any:
    """Return what other settings gave at the same rate, over the seeds that both have."""
    from saccade.report.document import Code, Table

    scores: dict[tuple[str, str, int], dict[int, float]] = {}
    for record in records:
        which = (record["family"], json.dumps(record["values"]), record["epochs"])
        scores.setdefault(which, {})[record["seed"]] = 100 * (record["score"] or 0.0)
    rows = []
    for (family, written, epochs), found in sorted(scores.items()):
        values = json.loads(written)
        rate = values.pop("optim.lr")
        usual = scores.get((family, json.dumps({"optim.lr": rate}), epochs), {})
        seeds = sorted({*found} & {*usual})
        if values and seeds:
            more = ", ".join(f"{name}={value}" for name, value in values.items())
            means = [_mean([of[seed] for seed in seeds]) for of in (usual, found)]
            cells = (f"{rate:g}", str(epochs), *(f"{mean:.1f}" for mean in means), str(len(seeds)))
            rows.append((family, Code(more), *cells, f"{means[1] - means[0]:+.1f}"))
    return Table(
        "Other settings: accuracy in percent without and with them, over the seeds that both have",
        ("Family", "Setting", "Rate", "Epochs", "Without", "With", "Seeds", "Points"),
        tuple(rows),
        (2, 3, 4, 5, 6, 7),
    )


def _place(rate: float) -> float:
    from math import log2

    return log2(rate / 1e-3)
