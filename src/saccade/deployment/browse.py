"""Index of runs and comparisons in given folders, addressed by id, never by path."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.spec import InputSpec
from ..report.plain import to_json
from ..support.files import read_record
from ..tasks.opening import find_task

DEPTH = 4
MOST_FOLDERS = 5000
MOST_ITEMS = 500
MOST_BYTES = 64 * 1024 * 1024
LARGEST_RECORD = 4 * 1024 * 1024


class Item(NamedTuple):
    """One run or comparison."""

    id: str
    kind: str
    name: str
    finished: bool
    has_report: bool
    facts: dict[str, Any]


class RunIndex:
    """Runs and comparisons that can be browsed.

    Args:
        folders: folders to search, a few levels deep; links are not followed.
        runs: folders of runs.
    """

    def __init__(self, folders: Sequence[str | Path] = (), runs: Sequence[str | Path] = ()) -> None:
        self.folders = [Path(folder).expanduser() for folder in folders]
        self.runs = [Path(run).expanduser() for run in runs]
        for folder in self.folders:
            if not folder.is_dir():
                raise NotADirectoryError(f"cannot browse {folder}: it is not a directory; give one that contains runs")
        self._known: dict[str, Path] = {}
        self._lock = threading.Lock()

    def items(self) -> list[Item]:
        """Search the folders."""
        found = {path.resolve(): name for path, name in self._walk()}
        items = [_item(path, name) for path, name in list(found.items())[:MOST_ITEMS]]
        with self._lock:
            self._known = {item.id: path for item, path in zip(items, found, strict=False)}
        return sorted(items, key=lambda item: (item.kind, item.name))

    def report(self, key: str) -> bytes | None:
        """Return the page of an item; None if it has none."""
        with self._lock:
            path = self._known.get(key)
        if path is None:
            return None
        try:
            file = path / "report.html"
            return file.read_bytes() if file.stat().st_size <= MOST_BYTES else None
        except OSError:
            return None

    def _walk(self) -> Iterator[tuple[Path, str]]:
        for run in self.runs:
            if (run / "config.yaml").is_file():
                yield run, run.resolve().name
        left = [MOST_FOLDERS]
        for folder in self.folders:
            yield from _search(folder, folder, DEPTH, left)


def _search(folder: Path, top: Path, depth: int, left: list[int]) -> Iterator[tuple[Path, str]]:
    left[0] -= 1
    if left[0] < 0:
        return
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    names = {item.name for item in inside}
    if names & {"config.yaml", "comparison.json"}:
        yield folder, str(folder.relative_to(top)) if folder != top else folder.resolve().name
    if depth and "config.yaml" not in names:
        for item in inside:
            if item.is_dir() and not item.is_symlink() and not item.name.startswith("."):
                yield from _search(item, top, depth - 1, left)


def _item(path: Path, name: str) -> Item:
    key = hashlib.sha256(str(path).encode("utf-8", "backslashreplace")).hexdigest()[:16]
    has_report = (path / "report.html").is_file()
    if (path / "comparison.json").is_file():
        arms = read_record(path / "comparison.json", most=LARGEST_RECORD).get("request", {}).get("arms", {})
        facts = {"arms": list(arms)} if isinstance(arms, dict) else {}
        return Item(key, "comparison", name, (path / "result.json").is_file(), has_report, facts)
    summary = read_record(path / "summary.json", most=LARGEST_RECORD)
    facts = {fact: summary[fact] for fact in ("epochs", "data", "parameters") if fact in summary} | _score(summary)
    return Item(key, "run", name, bool(summary), has_report, to_json(facts))


def _score(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a run's primary metric: key and value of its summary, and as text."""
    outputs = summary.get("classes")
    spec = InputSpec(tuple(outputs) if isinstance(outputs, list) else (), 3, 1, [], [])
    try:
        kind = find_task(str(summary.get("task", spec.task)))
        metric = kind.metrics.metric(str(summary.get("primary", kind.metrics.primary)), spec)
    except (ValueError, KeyError, NotImplementedError):  # unknown task, or no such metric
        return {}
    value = None if metric is None else summary.get(f"val_{metric.name}")
    if metric is None or isinstance(value, bool) or not isinstance(value, int | float):
        return {}
    record = {"name": metric.name, "words": metric.words, "share": metric.share, "text": metric.show(value)}
    record["larger"] = metric.larger_is_better
    return {f"val_{metric.name}": value, "score": {**record, "value": value}}
