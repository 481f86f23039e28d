"""Trials of a search on disk: a line for each finished one, a folder with the state of a running one."""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..runs.run import RunError
from ..settings import TrainConfig
from ..settings.hashing import OF_TRIALS, hash_settings
from ..support.files import append_line, write_text
from ..training.trial import OutOfTime, Trial, TrialSetup, run_trial

FORMAT = 1
# Settings that do not affect a trial's result, by the beginnings of their names.
MACHINE = ("engine.", "keep.every", "keep.states", "keep.tensorboard", "data.workers", "data.path", "recipe")


class Store:
    """The folder of a search, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_file, self.trials_file = path / "tune.json", path / "trials.jsonl"
        self.recipe, self.report, self.result = path / "tuned.yaml", path / "report.html", path / "result.json"
        self.trials: dict[str, Trial] = {}
        self.tried_on: dict[str, str] = {}  # fingerprint of the trials' samples

    def begin(self, request: Mapping[str, Any], *, overwrite: bool = False) -> dict[str, Any]:
        """Return earlier decisions for the same request; refuse a folder with other contents.

        Args:
            request: the request, as JSON values.
            overwrite: replace another search.
        """
        found = self.make()
        same = {k: v for k, v in found.get("request", {}).items() if k != "budget"} == {
            k: v for k, v in request.items() if k != "budget"
        }
        if found and not same:
            if not overwrite:
                raise RunError(
                    f"{self.path} holds a different search: {_difference(found['request'], request)}. Name another "
                    "directory with --out, or replace it with --overwrite"
                )
            for file in (self.record_file, self.trials_file, self.recipe, self.report, self.result):
                file.unlink(missing_ok=True)
            shutil.rmtree(self.path / "trials", ignore_errors=True)
            found = {}
        self.trials, self.tried_on = self._read_trials(), found.get("tried_on", {})
        return found if found.get("request", {}).get("budget") == request.get("budget") else {}

    def make(self) -> dict[str, Any]:
        """Create the folder, or return its contents; refuse one that is not a search."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; name a directory with --out")
        if self.path.exists() and any(item.name != ".lock" for item in self.path.iterdir()):
            return self._read()
        self.path.mkdir(parents=True, exist_ok=True)
        return {}

    def decide(self, request: Mapping[str, Any], **decided: Any) -> None:
        """Write request and decisions."""
        record = {"format": FORMAT, "request": dict(request), **decided}
        write_text(self.record_file, json.dumps(record, indent=1, ensure_ascii=False))

    def folder(self, key: str) -> Path:
        """Return the folder of a running trial's state."""
        return self.path / "trials" / key

    def trial(
        self,
        config: TrainConfig,
        ground: TrialSetup,
        about: Mapping[str, Any],
        *,
        device: torch.device,
        until: float | None,
        least: float = 0.0,
    ) -> Trial:
        """Return a trial's result, stored or new; raise OutOfTime if it cannot finish before the deadline.

        Args:
            about: values to write with the result.
            least: least duration in seconds.
        """
        key = key_of(config)
        if key not in self.trials:
            if until is not None and time.monotonic() + least > until:
                raise OutOfTime
            self.add(key, run_trial(config, ground, self.folder(key), device=device, until=until), about)
        return self.trials[key]

    def add(self, key: str, trial: Trial, about: Mapping[str, Any]) -> None:
        """Write a trial's result (fsynced) and remove its state."""
        append_line(self.trials_file, json.dumps({"key": key, **about, **asdict(trial)}, ensure_ascii=False))
        self.trials[key] = trial
        shutil.rmtree(self.folder(key), ignore_errors=True)

    def seconds_used(self) -> float:
        """Return the total duration of finished trials."""
        return sum(trial.seconds for trial in self.trials.values())

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self.record_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(
                f"{self.path} is not empty and holds no tune.json, so it is not a search; name another directory with "
                "--out"
            ) from None
        except ValueError:
            raise RunError(f"{self.record_file} is damaged; name another directory with --out, or remove it") from None

    def _read_trials(self) -> dict[str, Trial]:
        """Return finished trials; an incomplete last line, left by a kill, is removed."""
        found: dict[str, Trial] = {}
        lines: list[str] = []
        if not self.trials_file.exists():
            return found
        for line in self.trials_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                read = json.loads(line)
                scores = tuple((int(epoch), float(score)) for epoch, score in read["scores"])
                losses = tuple(float(loss) for loss in read["losses"])
                found[read["key"]] = Trial(read["score"], losses, scores, float(read["seconds"]), read["failed"])
            except (ValueError, KeyError, TypeError):
                break
            lines.append(line + "\n")
        write_text(self.trials_file, "".join(lines))
        return found


def key_of(config: TrainConfig) -> str:
    """Return a hash of a trial's settings, independent of the machine."""
    return hash_settings(config, first=OF_TRIALS, aside=MACHINE, length=12)


def _difference(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    names = [name for name in {**there, **asked} if name != "budget" and there.get(name) != asked.get(name)]
    return "; ".join(f"{name} = {there.get(name)!r} there, but {asked.get(name)!r} was given" for name in names)
