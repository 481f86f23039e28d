"""Evaluation results as JSON, Markdown and files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..report.page import show_table
from ..report.plain import to_json
from ..report.tally import Score
from ..statistics.bootstrap import Estimate
from ..support.files import OwnFolder, whole_folder, write_text
from ..tasks.metric import MetricSpec
from .findings import Findings
from .page import render
from .robust import mean_name

FILES = ("evaluation.json", "evaluation.html")
DIGITS = 6


class Evaluation(Findings):
    """Results of an evaluation; the attributes are those of `Findings`."""

    def __repr__(self) -> str:
        name = self.primary.name
        found = (
            f"{run.name} {name} {run.metrics[name].value:.4g}" for run in self.runs.values() if name in run.metrics
        )
        return f"<Evaluation on {self.samples:,} of {self.data}: {', '.join(found)}>"

    def _repr_html_(self) -> str:
        """Return the notebook representation: the main metrics of every run, with intervals."""
        rows = [
            [name, *(self._cell(run.metrics.get(name), spec) for run in self.runs.values())]
            for name, spec in self.specs.items()
        ]
        return show_table(f"{self.samples:,} of {self.data}", rows, head=["", *self.runs])

    @staticmethod
    def _cell(found: Estimate | None, spec: MetricSpec) -> str:
        """Format a metric with its interval."""
        if found is None:
            return ""
        return f"{_digits(found.value, spec)} ({_digits(found.low, spec)} to {_digits(found.high, spec)})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything except images as JSON values, with six digits."""
        runs = [
            {
                "name": run.name,
                "target": run.target,
                "parameters": run.parameters,
                "img_size": run.img_size,
                "frame": run.frame,
                "metrics": {key: asdict(found) for key, found in run.metrics.items()},
                "classes": [_class_record(score) for score in run.classes],
                "reliability": [found._asdict() for found in run.reliability],
            }
            for run in self.runs.values()
        ]
        found = {
            "data": {"name": self.data, "samples": self.samples, "fingerprint": self.fingerprint},
            "task": self.task,
            "primary": self.primary.name,
            "metrics": {name: _meaning(spec) for name, spec in self.specs.items()},
            "settings": self.settings,
            "runs": runs,
            "differences": [asdict(difference) for difference in self.differences],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
        }
        return to_json(found, digits=DIGITS)

    def to_json(self) -> str:
        """Return `to_dict` as JSON text; reproducible except for `seconds`."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the main metrics as a table, with attacks and the means over conditions."""
        names = [name for name in self.run().metrics if name in self.specs]
        lines = [
            f"| {self.samples:,} sample{'s' * (self.samples != 1)} of {self.data} | " + " | ".join(self.runs) + " |",
            "| --- |" + " --: |" * len(self.runs),
        ]
        for name in names:
            cells = [run.metrics[name] for run in self.runs.values() if name in run.metrics]
            shown = (self._cell(found, self.specs[name]) for found in cells)
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
        for found in self.differences:
            if found.metric in (self.primary.name, mean_name(self.primary.name)):
                p = "" if found.p_value is None else f", p = {found.p_value:.3g}"
                value, low, high = (_digits(x, self.primary, "+") for x in (found.value, found.low, found.high))
                text = f"{value} ({low} to {high}{p})"
                lines.append(f"\n{found.run} minus {found.reference}, {found.metric}: {text}")
        return "\n".join([*lines, *(f"\nnote: {note}" for note in self.notes)])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write evaluation.json and evaluation.html, both or neither; return the page's path."""
        path = FOLDER.require(folder, overwrite=overwrite)
        with whole_folder(path) as draft:
            write_text(draft / FILES[0], self.to_json() + "\n")
            write_text(draft / FILES[1], render(self))
        return path / FILES[1]


FOLDER = OwnFolder("evaluation", lambda folder: {entry.name for entry in folder.iterdir()} <= set(FILES))


def _meaning(spec: MetricSpec) -> dict[str, Any]:
    """Return the description of a metric."""
    return {name: getattr(spec, name) for name in ("words", "unit", "share", "larger_is_better")}


def _digits(value: float, spec: MetricSpec, sign: str = "") -> str:
    """Format a number with four decimals, or four significant digits if it is small."""
    plain = spec.share or not value or 1e-3 <= abs(value) < 1e6
    return f"{value:{sign}.4f}" if plain else f"{value:{sign}.4g}"


def _class_record(score: Score) -> dict[str, Any]:
    low, high = score.interval
    return {**score._asdict(), "accuracy": score.share, "low": low, "high": high}
