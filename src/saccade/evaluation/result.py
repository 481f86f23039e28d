"""What an evaluation found, and its files."""

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..report.tally import Bin, Score
from ..runs import free_name, write_text
from .bootstrap import Difference, Estimate
from .subjects import EvaluationError

FILES = ("evaluation.json", "evaluation.html")
DIGITS = 6


@dataclass(frozen=True)
class Evaluated:
    """What one model did.

    Args:
        name: of the run.
        target: what it was opened by.
        parameters: of the model.
        img_size: side of its pictures.
        metrics: every number by its name.
        classes: right answers of each class; empty where a picture may have several.
        reliability: answers in bins of confidence.
    """

    name: str
    target: str
    parameters: int
    img_size: int
    metrics: dict[str, Estimate]
    classes: list[Score]
    reliability: list[Bin]


@dataclass(frozen=True)
class Example:
    """A picture under a condition, for the page alone."""

    title: str
    pixels: Any  # H, W, C uint8


@dataclass(frozen=True)
class Evaluation:
    """Runs side by side on the same pictures.

    Args:
        runs: by name, in the order given; the first is the reference.
        differences: of every number of the other runs from the reference's.
        data: name of the pictures.
        pictures: how many were asked about.
        fingerprint: of the set they are from.
        settings: what decides the numbers: seed, limit, attacks, resamples.
        notes: remarks for the reader.
        seconds: how long it took.
        examples: pictures under each condition.
        page: where `evaluate` wrote it; None if it did not.
    """

    runs: dict[str, Evaluated]
    differences: list[Difference]
    data: str
    pictures: int
    fingerprint: str
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    examples: tuple[Example, ...] = field(default=(), repr=False)
    page: Path | None = None

    @property
    def reference(self) -> str:
        """Name of the first run."""
        return next(iter(self.runs))

    def run(self, name: str | None = None) -> Evaluated:
        """Return a run by its name, the first if none is given."""
        if name is not None and name not in self.runs:
            raise KeyError(f"there is no run {name!r}; there are {', '.join(self.runs)}")
        return self.runs[name or self.reference]

    def metrics(self, name: str | None = None) -> dict[str, float]:
        """Return a run's numbers, such as `top1` and `robust.mean_corruption_top1`, the first run's by default."""
        return {key: found.value for key, found in self.run(name).metrics.items()}

    def difference(self, name: str, metric: str = "top1") -> Difference:
        """Return how much higher a number is for a run than for the reference."""
        for found in self.differences:
            if found.run == name and found.metric == metric:
                return found
        raise KeyError(f"there is no difference of {metric!r} between {name!r} and {self.reference!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the pictures as JSON's types, numbers to six digits."""
        runs = [
            {
                "name": run.name,
                "target": run.target,
                "parameters": run.parameters,
                "img_size": run.img_size,
                "metrics": {key: asdict(found) for key, found in run.metrics.items()},
                "classes": [_class_record(score) for score in run.classes],
                "reliability": [found._asdict() for found in run.reliability],
            }
            for run in self.runs.values()
        ]
        found = {
            "data": {"name": self.data, "pictures": self.pictures, "fingerprint": self.fingerprint},
            "settings": self.settings,
            "runs": runs,
            "differences": [asdict(difference) for difference in self.differences],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
        }
        return _rounded(found)

    def to_json(self) -> str:
        """Return `to_dict` as text; the same for the same seed, `seconds` apart."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the main numbers as a table, conditions but for their mean and the attacks left out."""
        names = [n for n in self.run().metrics if "." not in n or n.startswith(("robust.", "fgsm.", "pgd."))]
        lines = [
            f"| {self.pictures:,} picture{'s' * (self.pictures != 1)} of {self.data} | " + " | ".join(self.runs) + " |",
            "| --- |" + " --: |" * len(self.runs),
        ]
        for name in names:
            cells = [run.metrics[name] for run in self.runs.values() if name in run.metrics]
            lines.append(
                f"| {name} | " + " | ".join(f"{e.value:.4f} ({e.low:.4f} to {e.high:.4f})" for e in cells) + " |"
            )
        for found in self.differences:
            if found.metric in ("top1", "robust.mean_corruption_top1"):
                p = "" if found.p_value is None else f", p = {found.p_value:.3g}"
                told = f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f}{p})"
                lines.append(f"\n{found.run} minus {found.reference}, {found.metric}: {told}")
        return "\n".join([*lines, *(f"\nnote: {note}" for note in self.notes)])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write evaluation.json and evaluation.html, both or none; return the page.

        Args:
            folder: made if it is not there.
            overwrite: replace an evaluation that is there.
        """
        from .page import render

        path = require_free(folder, overwrite=overwrite)
        draft = path.with_name(f".{path.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            write_text(draft / FILES[0], self.to_json() + "\n")
            write_text(draft / FILES[1], render(self))
            if path.exists():
                shutil.rmtree(path)
            os.replace(draft, path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return path / FILES[1]


def choose_folder(folder: str | Path, *, overwrite: bool) -> Path:
    """Return where an evaluation goes: the folder named, or one with a number if that holds an evaluation already.

    Args:
        folder: must hold nothing but an evaluation.
        overwrite: the one that is there may be replaced, so no number is needed.
    """
    path = require_free(folder, overwrite=True)
    if overwrite or not path.exists() or not any(path.iterdir()):
        return path
    path = path.resolve() if path.name in ("", "..") else path
    return free_name(path.parent, path.name)


def require_free(folder: str | Path, *, overwrite: bool) -> Path:
    """Return a folder that an evaluation may be written to, or say why not."""
    path = Path(folder).expanduser()
    if path.exists() and not path.is_dir():
        raise EvaluationError(f"{path} is a file; name a folder for the evaluation")
    if not path.exists():
        return path
    held = {entry.name for entry in path.iterdir()}
    if held - set(FILES):
        raise EvaluationError(
            f"{path} holds {sorted(held - set(FILES))[0]!r}, which is no evaluation; name a new folder"
        )
    if held and not overwrite:
        raise EvaluationError(f"{path} holds an evaluation; replace it by --overwrite, or name another folder by --out")
    return path


def _class_record(score: Score) -> dict[str, Any]:
    low, high = score.interval
    return {
        "name": score.name,
        "correct": score.correct,
        "pictures": score.pictures,
        "accuracy": score.share,
        "low": low,
        "high": high,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
