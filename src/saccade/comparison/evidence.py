"""What the finished runs of an arm say: answers picture by picture, and numbers seed by seed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..runs import Run, RunError
from .worker import COST

NOT_SCORES = {"epochs", "steps", "seconds", "parameters"}
SMALLER = ("loss", "ece", "error", "nll", "brier", "seconds", "memory")
LARGER = ("top1", "top5", "acc", "accuracy", "auc", "map", "ap", "f1", "miou", "recall", "precision")


@dataclass(frozen=True)
class Evidence:
    """The finished runs of an arm, by seed; `digests` stand for all that was kept of their answers, to the bit."""

    runs: Mapping[int, Path]
    summaries: Mapping[int, dict[str, Any]]
    records: Mapping[int, list[dict[str, Any]]]
    answers: Mapping[int, dict[str, np.ndarray]]
    memory: int | None
    digests: Mapping[int, str] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that finished."""
        return tuple(self.runs)

    def fingerprint(self, seed: int) -> str:
        """Return which validation pictures a run answered."""
        return str(self.summaries[seed]["validation"]["fingerprint"])

    def score(self, metric: str, seed: int) -> float:
        """Return a number that a run ended with."""
        for found in (self.summaries[seed], self.records[seed][-1] if self.records[seed] else {}):
            for name in (metric, f"val_{metric}"):
                if isinstance(found.get(name), int | float) and not isinstance(found[name], bool):
                    return float(found[name])
        raise ValueError(f"metric={metric!r} was given; {self.runs[seed]} ended with {', '.join(self.scores(seed))}")

    def scores(self, seed: int) -> dict[str, float]:
        """Return all scores that a run ended with, without their costs."""
        return {
            name: float(value)
            for name, value in self.summaries[seed].items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in NOT_SCORES
        }

    def seconds_per_step(self, seed: int) -> float | None:
        """Return seconds a step, without the first epoch where there are several."""
        records = self.records[seed]
        counted = records[1:] or records
        first = records[0]["step"] if len(records) > 1 else 0
        steps = records[-1]["step"] - first if records else 0
        return sum(record["seconds"] for record in counted) / steps if steps else None

    def curve(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds of training and accuracy after each epoch that was validated, from chance at the start on."""
        seconds, found = 0.0, [(0.0, 1 / len(self.summaries[seed]["classes"]))]
        for record in self.records[seed]:
            seconds += record["seconds"]
            found += [(seconds, record["val_top1"])] if "val_top1" in record else []
        times, accuracies = zip(*found, strict=True)
        return np.array(times), np.array(accuracies)


def read_evidence(runs: Mapping[int, Path]) -> Evidence:
    """Read finished runs, by seed."""
    opened = {seed: Run.open(path) for seed, path in runs.items()}
    answers: dict[int, dict[str, np.ndarray]] = {}
    digests: dict[int, str] = {}
    for seed, run in opened.items():
        found = {name: value.numpy() for name, value in sorted(run.predictions().items())}
        answers[seed] = {name: found[name] for name in ("place", "label", "correct", "loss") if name in found}
        digests[seed] = hashlib.sha256(b"".join(value.tobytes() for value in found.values())).hexdigest()
    return Evidence(
        runs=dict(runs),
        summaries={seed: run.summary() for seed, run in opened.items()},
        records={seed: run.metrics() for seed, run in opened.items()},
        answers=answers,
        memory=max((m for path in runs.values() if (m := _memory(path)) is not None), default=None),
        digests=digests,
    )


def _memory(path: Path) -> int | None:
    try:
        return json.loads((path / COST).read_text(encoding="utf-8")).get("peak_memory")
    except (OSError, ValueError):
        return None


def same_pictures(arms: Mapping[str, Evidence]) -> bool:
    """Return whether all runs answered the same pictures; refuse arms of one seed that did not."""
    everywhere = {arm.fingerprint(seed) for arm in arms.values() for seed in arm.seeds}
    for seed in sorted({seed for arm in arms.values() for seed in arm.seeds}):
        found = {name: arm.fingerprint(seed) for name, arm in arms.items() if seed in arm.seeds}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{name} {digest[:12]}" for name, digest in found.items())
            raise RunError(
                f"the arms validated on different pictures with seed {seed}: {told}; only answers to the same pictures "
                "can be compared. The set was changed between runs: begin anew in another folder"
            )
    return len(everywhere) <= 1


def common_places(arms: Mapping[str, Evidence]) -> np.ndarray:
    """Return the pictures that every run answered, in order; one that a run could not read is left out."""
    found: np.ndarray | None = None
    for arm in arms.values():
        for answer in arm.answers.values():
            places = answer["place"]
            found = places if found is None else np.intersect1d(found, places)
    return np.empty(0, np.int64) if found is None else np.sort(found)


def per_picture(arm: Evidence, field: str, seeds: tuple[int, ...], places: np.ndarray) -> np.ndarray:
    """Return scores of an arm, seeds x pictures, float64."""
    rows = []
    for seed in seeds:
        answer = arm.answers[seed]
        order = np.argsort(answer["place"])
        rows.append(answer[field][order[np.searchsorted(answer["place"], places, sorter=order)]])
    return np.stack(rows).astype(np.float64)


def larger_is_better(metric: str, told: bool | None = None) -> bool | None:
    """Return which way a metric is better, by its name if it was not told; None if the name does not say."""
    if told is not None:
        return told
    words = metric.lower().split("_")
    if any(word in SMALLER for word in words):
        return False
    return True if any(word in LARGER for word in words) else None
