"""A run is a folder: its settings, its metrics as they came, its weights, its state, its report."""

import csv
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from .building import load_model, save_model
from .config import TrainConfig, overlay, read_yaml, to_yaml

__all__ = ["Run", "RunError", "free_name", "load_model", "save_model", "write_text"]


class RunError(ValueError):
    """A folder that is no run, or a run that is not to be touched."""


class Run:
    """A run's folder.

    Args:
        path: of the folder; see `create` and `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.weights = path / "model.safetensors"
        self.states = path / "state"
        self.predictions_file = path / "predictions.safetensors"
        self.bad_file = path / "bad_pictures.json"
        self.report = path / "report.html"

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig, *, overwrite: bool = False) -> "Run":
        """Make the folder of a new run.

        Args:
            path: must not hold anything, unless `overwrite`, which removes it.
            config: written as `config.yaml`.
            overwrite: remove what is there if it is a run.
        """
        run = cls(Path(path).expanduser())
        if run.path.exists() and not run.path.is_dir():
            raise RunError(f"{run.path} is a file; name a folder for the run")
        if run.path.is_dir() and any(run.path.iterdir()):
            if not overwrite:
                raise RunError(
                    f"{run.path} exists and is not empty; go on with it by --resume {run.path}, name another folder by "
                    "--out, or replace it by --overwrite"
                )
            if not run.settings.exists():
                raise RunError(f"{run.path} is not a run, so it is not replaced; name another folder by --out")
            shutil.rmtree(run.path)
        run.path.mkdir(parents=True, exist_ok=True)
        write_text(run.settings, to_yaml(config))
        return run

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Return an existing run."""
        run = cls(Path(path).expanduser())
        if not run.settings.is_file():
            told = "is not there" if not run.path.exists() else "holds no config.yaml, so it is no run"
            raise RunError(f"{run.path} {told}; give the folder that `saccade train` wrote")
        return run

    def config(self) -> TrainConfig:
        """Return the run's settings."""
        text = self.settings.read_text(encoding="utf-8")
        return overlay(TrainConfig(), read_yaml(text, source=str(self.settings)), source=str(self.settings))

    def metrics(self) -> list[dict[str, Any]]:
        """Return what was measured, one record an epoch; a line torn by a kill is left out."""
        if not self.metrics_file.exists():
            return []
        records = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record to the metrics, on the disk before this returns."""
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._write_csv(self.metrics())

    def forget_after(self, epoch: int) -> None:
        """Drop records of later epochs than the one a state resumes in; they come again."""
        records = [record for record in self.metrics() if record["epoch"] <= epoch]
        write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in records))
        self._write_csv(records)

    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.weights.exists() and (self.path / "summary.json").exists()

    def summary(self) -> dict[str, Any]:
        """Return what the run ended with."""
        try:
            return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(
                f"{self.path} is not finished; go on with it by saccade train --resume {self.path}"
            ) from None

    def predictions(self) -> dict[str, Tensor]:
        """Return the answers on the validation pictures: labels, correct, confidence, loss, logits where kept."""
        if not self.predictions_file.exists():
            raise RunError(f"{self.path} holds no predictions; finish it by saccade train --resume {self.path}")
        return load_file(self.predictions_file)

    def _write_csv(self, records: list[dict[str, Any]]) -> None:
        names = list(dict.fromkeys(name for record in records for name in record))
        draft = self.path / ".metrics.csv.part"
        with open(draft, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(records)
        os.replace(draft, self.path / "metrics.csv")


def free_name(folder: Path, name: str) -> Path:
    """Return `folder/name`, with a number if that is taken."""
    path, number = folder / name, 2
    while path.exists():
        path, number = folder / f"{name}-{number}", number + 1
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f".{path.name}.part")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
