"""The folder of a comparison: its request and its runs."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...data.split import abbreviate
from ...runs.run import Run, RunError, hold
from ...runs.state import list_states
from ...settings import TrainConfig
from ...settings.hashing import OF_COMPARISONS, hash_settings
from ...support.files import write_text

FORMAT = 1
# Settings that do not affect the result: runs that only differ in these are the same.
MACHINE = {
    "engine.device",
    "engine.threads",
    "data.resident",
    "data.bad_limit",
    "keep.every_steps",
    "keep.every_seconds",
    "keep.states",
    "keep.tensorboard",
}


class Folder:
    """The folder of a comparison, which may not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.record_file = self.path / "comparison.json"
        self.result_file = self.path / "result.json"
        self.markdown_file = self.path / "result.md"

    def record(self) -> dict[str, Any] | None:
        """Return the comparison's record; None if there is none."""
        if not self.path.exists():
            return None
        if not self.path.is_dir():
            raise RunError(f"{self.path} is a file; choose a directory for the comparison")
        try:
            record = json.loads(self.record_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if any(item.name != ".lock" for item in self.path.iterdir()):
                raise RunError(
                    f"{self.path} is not empty and has no comparison.json, so it is not a comparison; choose another "
                    "directory with --out"
                ) from None
            return None
        except ValueError:
            raise RunError(
                f"{self.record_file} is damaged; choose another directory with --out, or remove that file"
            ) from None
        return record

    def claim(self, request: Mapping[str, Any], *, overwrite: bool = False) -> dict[str, Any]:
        """Return the record of the same request; refuse a folder with another comparison.

        Args:
            request: the request, which may have additional arms and seeds.
            overwrite: replace another request; finished runs are kept.
        """
        record = self.record()
        if record is None or overwrite:
            return {}
        here = record["request"]
        names = [name for name in {**here, **request} if name not in ("arms", "seeds", "budget")]
        other = [name for name in names if request.get(name) != here.get(name)]
        differs = [f"{name} = {here.get(name)!r} there, {request.get(name)!r} requested" for name in other]
        for name, text in request["arms"].items():
            if name in here["arms"] and here["arms"][name] != text:
                differs.append(f"arm {name} is {here['arms'][name]!r} there, {text!r} requested")
        if differs:
            raise RunError(
                f"{self.path} holds another comparison: {'; '.join(differs)}. Choose another directory with --out, "
                "or replace it with --overwrite, which keeps finished runs"
            )
        return record

    def write(self, request: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Write request and decisions."""
        self.path.mkdir(parents=True, exist_ok=True)
        record = {"format": FORMAT, "request": dict(request), **found}
        write_text(self.record_file, json.dumps(record, indent=1, ensure_ascii=False))

    def looks(self, seeds: Sequence[int]) -> list[list[int]]:
        """Return the seeds of every look at results, including one at these seeds; equal seeds are one look."""
        looks, now = (self.record() or {}).get("looks"), sorted(seeds)
        if looks is None:  # a comparison of an earlier version
            try:
                before = json.loads(self.result_file.read_text(encoding="utf-8"))
                looks = [sorted(next(arm["seeds"] for arm in before["arms"] if arm["name"] == before["reference"]))]
            except (OSError, ValueError, KeyError, TypeError, StopIteration):
                looks = []
        return [*looks, *([] if now in looks else [now])]

    def count_look(self, seeds: Sequence[int]) -> int:
        """Record a look at results, and return the number of looks."""
        record, looks = self.record(), self.looks(seeds)
        if record and looks != record.get("looks"):
            self.add({"looks": looks})
        return looks.index(sorted(seeds)) + 1

    def add(self, results: Mapping[str, Any]) -> None:
        """Write further results."""
        write_text(self.record_file, json.dumps({**(self.record() or {}), **results}, indent=1, ensure_ascii=False))

    def run_path(self, name: str, config: TrainConfig) -> Path:
        """Return a run's path; equal settings of another arm share it."""
        digest = config_hash(config)
        known = sorted((self.path / "runs").glob(f"*-{digest}"))
        return (known[0] if known else self.path / "runs" / f"{slug(name)}-{digest}") / f"seed-{config.seed}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the comparison; the lock is released if the process is killed."""
        self.record()  # do not write to a folder with other contents
        self.path.mkdir(parents=True, exist_ok=True)
        with hold(self.path / ".lock", wait=0.0):
            yield


def config_hash(config: TrainConfig) -> str:
    """Return a hash of the settings, without seed and machine."""
    # A recipe's settings are hashed: one that was renamed or edited makes another run only where these differ.
    return hash_settings(config, first=OF_COMPARISONS, aside=(*MACHINE, "seed", "recipe"), length=10)


def slug(name: str) -> str:
    """Return a name that is safe for all file systems."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40] or "arm"


def is_finished(path: Path) -> bool:
    """Whether a run is finished and has what is compared; its weights, which are not, may have been deleted."""
    run = Run(path)
    return (path / "summary.json").exists() and (run.scores_file.exists() or run.predictions_file.exists())


def resumable(path: Path) -> Run | None:
    """Return an unfinished run to resume; remove one that cannot be resumed."""
    run = Run(path)
    if run.settings.exists() and list_states(run.states):
        return run
    if path.exists():
        foreign = run.foreign()
        if foreign:
            raise RunError(
                f"{path} holds {abbreviate(foreign)}, which no run wrote; remove it, or choose another directory "
                "with --out"
            )
        shutil.rmtree(path)
    return None
