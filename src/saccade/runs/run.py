"""The folder of a run: settings, metrics, weights, states, report."""

import csv
import io
import json
import os
import pkgutil
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..settings import ConfigError, DataConfig, TrainConfig, drop_retired, overlay, read_yaml, to_yaml
from ..support.files import explained, write_text
from .scores import Scores, read_scores, scores_before

COMMON = r"\.DS_Store|\.[^/]+\.part(/.*)?"  # other files in a run's folder: drafts, macOS metadata
WAIT = 60.0  # seconds to wait for another process' lock
GROUPS = ("data", "model", "optim", "schedule")  # groups of settings in every version's config.yaml


class RunError(ValueError):
    """A folder is not a run, or a run must not be changed."""


class Run:
    """A run's folder; see `create` and `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.table_file = path / "metrics.csv"  # the same metrics
        self.weights = path / "model.safetensors"
        self.last_weights = path / "last.safetensors"  # weights of an unfinished run
        self.best_weights = path / "best.safetensors"  # weights of the best validation so far
        self.states = path / "state"
        self.scores_file = path / "scores.safetensors"
        self.predictions_file = path / "predictions.safetensors"
        self.bad_file = path / "bad_samples.json"
        self.report = path / "report.html"

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig, *, overwrite: bool = False) -> "Run":
        """Create the folder of a new run.

        Args:
            path: the folder, which must be empty, unless `overwrite`, and outside of the dataset.
            config: settings, written as `config.yaml`.
            overwrite: remove an existing run, if the folder contains nothing else.
        """
        run = cls(Path(path).expanduser())
        if run.path.exists() and not run.path.is_dir():
            raise RunError(f"{run.path} is a file; name a directory for the run")
        require_apart(run.path, config.data)
        drafts = re.compile(COMMON)  # left by a run killed at its start
        if run.path.is_dir() and any(drafts.fullmatch(entry.name) is None for entry in run.path.iterdir()):
            if not overwrite:
                raise RunError(
                    f"{run.path} exists and is not empty; resume it with --resume {run.path}, name another "
                    "directory with --out, or replace it with --overwrite"
                )
            run.clear()
        with explained(run.path, then="name another directory with --out if you cannot write there"):
            run.path.mkdir(parents=True, exist_ok=True)
        write_text(run.settings, to_yaml(config))
        return run

    def clear(self) -> None:
        """Remove a run's files; refuse folders that are not runs or have other files."""
        if not self._is_run():
            raise RunError(
                f"{self.path} is not a run (it has no config.yaml written by saccade train), so it is not replaced; "
                "name another directory with --out"
            )
        foreign = self.foreign()
        if foreign:
            more = f" and {len(foreign) - 8} more" if len(foreign) > 8 else ""
            raise RunError(
                f"{self.path} contains files that runs do not have: {', '.join(foreign[:8])}{more}. It is not "
                "replaced; move these files elsewhere, or name another directory with --out"
            )
        # Remove the settings last, so that an interrupted removal can be repeated.
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry == self.settings):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _is_run(self) -> bool:
        """Whether the settings are a run's, of any version."""
        try:
            values = read_yaml(self._read_settings(), source=str(self.settings))
        except (OSError, ConfigError):
            return False
        return "seed" in values and all(isinstance(values.get(name), dict) for name in GROUPS)

    def foreign(self) -> list[str]:
        """Return entries of the folder that saccade has not written."""
        found, own = [], _written_by_verbs()
        for here, folders, files in os.walk(self.path):
            inside = Path(here).relative_to(self.path)
            for name in (*folders, *files):
                relative = (inside / name).as_posix()
                if own.fullmatch(relative) is None:
                    found.append(f"{relative}/" if name in folders else relative)
            folders[:] = [name for name in folders if own.fullmatch((inside / name).as_posix())]
        return sorted(found)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Return an existing run."""
        run = cls(Path(path).expanduser())
        if not run.settings.is_file():
            detail = "does not exist" if not run.path.exists() else "has no config.yaml, so it is not a run"
            raise RunError(f"{run.path} {detail}; give the folder that `saccade train` wrote")
        return run

    def config(self) -> TrainConfig:
        """Return the run's settings."""
        source = str(self.settings)
        values = drop_retired(read_yaml(self._read_settings(), source=source), source=source)
        return overlay(TrainConfig(), values, source=source)

    def _read_settings(self) -> str:
        try:
            return self.settings.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self.settings} is not text: {error}; it is damaged, or does not belong to a run"
            ) from None

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics, one record per epoch, without an incomplete last line."""
        if not self.metrics_file.exists():
            return []
        records = []
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record to the metrics; `fsync_metrics` flushes it to disk."""
        with explained(self.metrics_file, then=self._resume):
            names = _header(self.table_file)
            with open(self.metrics_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(dict(record)) + "\n")
            if names is None or not record.keys() <= set(names):
                self._write_csv(self.metrics())
                return
            with open(self.table_file, "a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, names).writerow(record)

    def fsync_metrics(self) -> None:
        """Flush the metrics to disk, before a state that relies on them is written."""
        with suppress(FileNotFoundError), open(self.metrics_file, "rb") as file:
            os.fsync(file.fileno())

    def forget_after(self, epoch: int) -> None:
        """Drop records of epochs after the resumed one, which will be repeated."""
        records = [record for record in self.metrics() if record["epoch"] <= epoch]
        write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in records))
        self._write_csv(records)

    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.weights.exists() and (self.path / "summary.json").exists()

    def summary(self) -> dict[str, Any]:
        """Return the run's summary."""
        try:
            return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self.path} is not finished; resume it with saccade train --resume {self.path}") from None
        except ValueError:
            raise RunError(f"{self.path / 'summary.json'} is damaged; write it again with {self._resume}") from None

    def predictions(self) -> dict[str, Tensor]:
        """Return the predictions on validation images: labels, correct, confidence, loss, and logits if saved."""
        if not self.predictions_file.exists():
            raise RunError(f"{self.path} holds no predictions; finish it with saccade train --resume {self.path}")
        try:
            return load_file(self.predictions_file)
        except SafetensorError as error:
            raise RunError(
                f"{self.predictions_file} is damaged ({error}); write it again with {self._resume}"
            ) from None

    def scores(self) -> Scores:
        """Return the scores of validation samples, with the metrics' specifications."""
        if not self.scores_file.exists():
            kept = {name: value.numpy() for name, value in self.predictions().items()}
            return scores_before(kept, len(self.summary()["classes"]))
        try:
            return read_scores(self.scores_file)
        except ValueError as error:
            raise RunError(f"{error}; write it again with {self._resume}") from None

    @property
    def _resume(self) -> str:
        return f"saccade train --resume {self.path}"

    def _write_csv(self, records: list[dict[str, Any]]) -> None:
        names = list(dict.fromkeys(name for record in records for name in record))
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(records)
        write_text(self.table_file, text.getvalue())


def _header(file: Path) -> list[str] | None:
    """Return the column names of a table; None if it does not exist."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return next(csv.reader(opened), None)
    except FileNotFoundError:
        return None


def _written_by_verbs() -> re.Pattern[str]:
    """Return the paths that commands write in a run's folder, as declared in `commands`."""
    commands = import_module("..commands", __package__)
    verbs = (import_module(f"{commands.__name__}.{found.name}") for found in pkgutil.iter_modules(commands.__path__))
    return re.compile("|".join([COMMON, *(verb.WRITES for verb in verbs if hasattr(verb, "WRITES"))]))


@contextmanager
def hold(file: Path, *, wait: float = WAIT) -> Iterator[None]:
    """Hold a lock file within a context; wait for it for the given seconds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(file, timeout=wait):
            yield
    except Timeout:
        raise RunError(f"{file.parent} is in use by another process; wait for it or stop it") from None


def require_apart(out: str | Path, data: DataConfig) -> None:
    """Refuse an output folder that equals, contains, or is inside the dataset."""
    folder = Path(out).expanduser().resolve()
    for spec in (data.path, data.val or ""):
        named = Path(spec).expanduser()
        parts = [named] if named.exists() else [Path(part.strip()).expanduser() for part in spec.split(",")]
        for path in (part.resolve() for part in parts if spec and part.exists()):
            if folder == path or path in folder.parents or folder in path.parents:
                where = "is" if folder == path else "lies inside" if path in folder.parents else "holds"
                raise RunError(
                    f"{out} {where} the dataset, {spec}: the run's files could be mistaken for images or "
                    "overwrite them; name a directory elsewhere with --out"
                )
