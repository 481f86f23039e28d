"""The state of a run on disk: written atomically, with checksums, readable by any number of processes.

A state is a folder of safetensors files, one per process, and `state.json` with other values, the shards of every
tensor, and checksums of every file and of itself. It is written to a temporary folder and renamed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..support.files import open_regular, read_small

STEP_FOLDER = "step-{:09d}"
FOLDER = re.compile(r"step-(\d+)(?:\.(\d+))?")
SHARD = r"shard-\d+-of-\d+\.safetensors"
RECORD_BYTES = 2**30  # largest state.json


class Processes:
    """The processes that write a state together; the base class is a single one."""

    rank, size = 0, 1

    @property
    def is_main(self) -> bool:
        """Whether this is the main process."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order."""
        return [value]


class StateError(ValueError):
    """A state cannot be written or read."""


@dataclass
class State:
    """The state of a run for an exact resume."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]
    notes: list[str] = field(default_factory=list)  # skipped states, with reasons
    passed: list[Path] = field(default_factory=list)  # paths of skipped states


def save_state(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    record: Mapping[str, Any],
    *,
    keep: int = 2,
    world: Processes | None = None,
) -> Path:
    """Write a state and remove the oldest ones.

    Args:
        tensors: tensors by name; every process writes its shards.
        record: other values, as JSON.
        keep: number of states to keep.
        world: the processes, which all call this.
    """
    world = world or Processes()
    writing = _AllOrNone(world, folder, f"the state at step {step} could not be written to {folder}")
    with writing:
        if world.is_main:
            writing.result = _begin(folder, step)
    place, draft = world.gather(writing.result)[0]
    shard = f"shard-{world.rank}-of-{world.size}.safetensors"
    with writing:
        mine, layout = _pieces(tensors, shard, is_main=world.is_main)
        save_file(mine, draft / shard)
        _sync(draft / shard)
        writing.result = (shard, _digest(draft / shard), layout)
    parts = world.gather(writing.result)
    with writing:
        if world.is_main:
            _write_record(draft / "state.json", record, parts)
            _sync(draft)
            os.replace(draft, place)
            _sync(folder)
            for old in list_states(folder)[:-keep]:
                shutil.rmtree(old, ignore_errors=True)
    return place


class _AllOrNone:
    """A step of writing that raises on all processes if it fails on any."""

    def __init__(self, world: Processes, folder: Path, failed: str) -> None:
        self.world, self.folder, self.failed = world, folder, failed
        self.result: Any = None

    def __enter__(self) -> None:
        self.result = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, OSError | SafetensorError):
            return
        errors = [text for text in self.world.gather(None if error is None else str(error)) if text is not None]
        if errors:
            then = "States written before are intact; make room or choose another disk, then resume"
            if not list_states(self.folder):
                then = (
                    "There is no earlier state to resume from: make room, or choose another disk with --out, and "
                    "start again"
                )
            raise StateError(f"{self.failed}: {errors[0]}. {then}") from error


def _begin(folder: Path, step: int) -> tuple[Path, Path]:
    """Return the new path of a state and its draft; unfinished drafts are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".step-*.part"):
        shutil.rmtree(left, ignore_errors=True)
    name, again = STEP_FOLDER.format(step), 0
    while (folder / (name + (f".{again}" if again else ""))).exists():
        again += 1  # keep an earlier state of the same step until this one is complete
    name += f".{again}" if again else ""
    draft = folder / f".{name}.part"
    draft.mkdir()
    return folder / name, draft


def load_state(folder: Path) -> State:
    """Read the newest intact state.

    Returns:
        The state; an empty one if there is none.
    """
    notes: list[str] = []
    passed: list[Path] = []
    for place in reversed(list_states(folder)):
        try:
            tensors, record = read_state(place)
        except StateError as error:
            notes.append(f"{place.name} is damaged and was skipped: {error}")
            passed.append(place)
            continue
        return State(tensors, record, notes, passed)
    if not notes:
        return State({}, {}, ["no state was saved before the run stopped: starting from the beginning"])
    raise StateError(f"no intact state in {folder}: {'; '.join(notes)}. Start a new run in another folder")


def read_state(place: Path, *, only: tuple[str, ...] = ("",)) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors of a state, by name prefix, and its record; raise StateError if a checksum does not match."""
    try:
        outer = json.loads(read_small(place / "state.json", most=RECORD_BYTES))
        text = outer["body"]
        if hashlib.sha256(text.encode()).hexdigest() != outer["sha256"]:
            raise StateError("state.json does not match its checksum")
        body = json.loads(text)
        for shard, digest in body["shards"].items():
            if re.fullmatch(SHARD, shard) is None:
                raise StateError(f"{shard[:80]!r} is not a file of a state")
            if _digest(place / shard) != digest:
                raise StateError(f"{shard} does not match its checksum")
        wanted = {name: pieces for name, pieces in body["layout"].items() if name.startswith(only)}
        return _assemble(place, wanted), body["record"]
    except StateError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError, RecursionError) as error:
        raise StateError(f"{type(error).__name__}: {str(error)[:300]}") from error
    except (RuntimeError, MemoryError, OverflowError) as error:  # inconsistent shards
        raise StateError(f"its shards cannot be combined ({str(error)[:200]})") from error


def list_states(folder: Path) -> list[Path]:
    """Return a run's states, oldest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir() and FOLDER.fullmatch(path.name)), key=_age)


def step_of(place: Path) -> int:
    """Return the step at which a state was written."""
    return _age(place)[0]


def _age(place: Path) -> tuple[int, int]:
    """Return a state's step and the number of earlier states of that step."""
    found = FOLDER.fullmatch(place.name)
    assert found is not None
    return int(found[1]), int(found[2] or 0)


def set_aside(passed: list[Path]) -> None:
    """Rename damaged states, so that they do not count as kept ones."""
    for place in passed:
        aside = place.with_name(f"damaged-{place.name}")
        shutil.rmtree(aside, ignore_errors=True)
        if place.exists():
            os.replace(place, aside)


def piece_of(tensor: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
    """Return the local shard of a tensor, the full shape, and the shard's offset on the first axis."""
    sharded: Any = tensor
    mesh = getattr(sharded, "device_mesh", None)
    if mesh is None:
        return tensor, tuple(tensor.shape), 0
    local, length = sharded.to_local(), tensor.shape[0]
    each = -(-length // mesh.size())  # as in torch.chunk
    return local, tuple(tensor.shape), min(mesh.get_local_rank() * each, length)


def _pieces(tensors: Mapping[str, Tensor], shard: str, *, is_main: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    mine, layout = {}, {}
    for name, tensor in tensors.items():
        local, shape, offset = piece_of(tensor)
        if local is tensor and not is_main:
            continue  # identical in every process
        mine[name] = local.detach().contiguous().to("cpu", copy=True)
        layout[name] = {"shape": list(shape), "shard": shard, "offset": offset}
    return mine, layout


def _write_record(path: Path, record: Mapping[str, Any], parts: list[tuple[str, str, dict[str, Any]]]) -> None:
    layout: dict[str, list[Any]] = {}
    for _, _, pieces in parts:
        for name, piece in pieces.items():
            layout.setdefault(name, []).append(piece)
    body = {"record": dict(record), "shards": {shard: digest for shard, digest, _ in parts}, "layout": layout}
    text = json.dumps(body, sort_keys=True)
    whole = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text})
    with open(path, "w", encoding="utf-8") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())


def _assemble(place: Path, layout: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    """Concatenate the shards of every tensor along the first axis."""
    files = {piece["shard"] for pieces in layout.values() for piece in pieces}
    if not all(re.fullmatch(SHARD, name) for name in files):
        raise StateError(f"its tensors are in {str(sorted(files))[:200]}, which are not files of a state")
    opened = {name: safe_open(place / name, framework="pt") for name in files}
    tensors = {}
    for name, pieces in layout.items():
        parts = [opened[p["shard"]].get_tensor(name) for p in sorted(pieces, key=lambda p: p["offset"])]
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        if list(tensor.shape) != pieces[0]["shape"]:
            raise StateError(f"{name} has the shape {tuple(tensor.shape)}, but {tuple(pieces[0]['shape'])} was written")
        tensors[name] = tensor
    return tensors


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
