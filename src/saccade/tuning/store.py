"""The trials of a search on disk: a line each when it has ended, a folder with its state while it runs."""

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..runs.run import RunError
from ..settings import TrainConfig, flatten
from ..support.files import append_line, write_text
from ..training.trial import Ground, OutOfTime, Trial, run_trial

FORMAT = 1
MACHINE = ("engine.", "keep.every", "keep.states", "keep.tensorboard", "data.workers", "data.path", "recipe")


class Store:
    """The folder of a search, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_file, self.trials_file = path / "tune.json", path / "trials.jsonl"
        self.recipe, self.report, self.result = path / "tuned.yaml", path / "report.html", path / "result.json"
        self.trials: dict[str, Trial] = {}
        self.tried_on: dict[str, str] = {}  # what tells the samples of the trials in the folder from others

    def begin(self, request: Mapping[str, Any], *, overwrite: bool = False) -> dict[str, Any]:
        """Return what was decided here for the same request before; refuse a folder that holds something else.

        Args:
            request: what is asked, as JSON holds it.
            overwrite: begin anew in the place of another search.
        """
        found = self.make()
        same = {k: v for k, v in found.get("request", {}).items() if k != "budget"} == {
            k: v for k, v in request.items() if k != "budget"
        }
        if found and not same:
            if not overwrite:
                raise RunError(
                    f"{self.path} holds another search: {_difference(found['request'], request)}. Name another "
                    "directory with --out, or replace it with --overwrite"
                )
            for file in (self.record_file, self.trials_file, self.recipe, self.report, self.result):
                file.unlink(missing_ok=True)
            shutil.rmtree(self.path / "trials", ignore_errors=True)
            found = {}
        self.trials, self.tried_on = self._read_trials(), found.get("tried_on", {})
        return found if found.get("request", {}).get("budget") == request.get("budget") else {}

    def make(self) -> dict[str, Any]:
        """Make the folder, or return what is written in it; refuse one that is no search."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; name a directory with --out")
        if self.path.exists() and any(item.name != ".lock" for item in self.path.iterdir()):
            return self._read()
        self.path.mkdir(parents=True, exist_ok=True)
        return {}

    def decide(self, request: Mapping[str, Any], **decided: Any) -> None:
        """Write down what was asked and decided."""
        record = {"format": FORMAT, "request": dict(request), **decided}
        write_text(self.record_file, json.dumps(record, indent=1, ensure_ascii=False))

    def folder(self, key: str) -> Path:
        """Return where a trial keeps its state while it runs."""
        return self.path / "trials" / key

    def trial(
        self,
        config: TrainConfig,
        ground: Ground,
        about: Mapping[str, Any],
        *,
        device: torch.device,
        until: float | None,
        least: float = 0.0,
    ) -> Trial:
        """Return how a trial ended, in the folder before or now; raises OutOfTime where it cannot end until then.

        Args:
            about: what is written beside it.
            least: seconds that it takes at least.
        """
        key = key_of(config)
        if key not in self.trials:
            if until is not None and time.monotonic() + least > until:
                raise OutOfTime
            self.add(key, run_trial(config, ground, self.folder(key), device=device, until=until), about)
        return self.trials[key]

    def add(self, key: str, trial: Trial, about: Mapping[str, Any]) -> None:
        """Write down how a trial ended, on the disk before this returns; its state goes."""
        append_line(self.trials_file, json.dumps({"key": key, **about, **asdict(trial)}, ensure_ascii=False))
        self.trials[key] = trial
        shutil.rmtree(self.folder(key), ignore_errors=True)

    def spent(self) -> float:
        """Return the seconds of all trials that ended here."""
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
        """Return the trials that ended; a line torn by a kill is left out, and cut off."""
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
    """Return letters that stand for what a trial trains, wherever it runs."""
    leaves = {name: value for name, value in flatten(config).items() if not name.startswith(MACHINE)}
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()[:12]


def _difference(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    names = [name for name in {**there, **asked} if name != "budget" and there.get(name) != asked.get(name)]
    return "; ".join(f"{name} = {there.get(name)!r} there, {asked.get(name)!r} asked" for name in names)
