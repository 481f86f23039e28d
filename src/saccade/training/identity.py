"""Fingerprints of a run's inputs that its state does not contain: samples, teacher, initial weights."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..building.checkpoint import weights_file
from ..data.source import Source, Stream
from ..data.spec import InputSpec
from ..data.split import abbreviate
from ..settings import ModelConfig
from ..support.files import fingerprint
from ..tasks import Task
from ..tasks.hosts import PREFIX as HOSTED
from ..tasks.opening import TaskChoice


def identity_of(train: Source | Stream, val: Source, *, steps: int) -> dict[str, Any]:
    """Return the fingerprint of samples as JSON; it does not depend on their location."""
    return {
        "classes": list(train.outputs),
        "training": [train.length, ""] if isinstance(train, Stream) else [len(train), train.fingerprint()],
        "validation": [len(val), val.fingerprint()],
        "steps": steps,
    }


def other_inputs(task: Task, spec: InputSpec) -> dict[str, Any]:
    """Return fingerprints of the run's other inputs, such as a teacher, as JSON."""
    new: Any = getattr(task.model, "new_parameters", None)
    return {
        "learns_from": task.learns_from(),
        "new": None if new is None else _digest(sorted(new)),
        "spec": _facts(spec.to_dict()),
    }


def starts_from(model: ModelConfig, choice: TaskChoice) -> dict[str, str]:
    """Return fingerprints of the files of initial weights, by description."""
    if choice.kind.hosts.builds(model.name):
        folder = Path(model.name.removeprefix(HOSTED)).expanduser()
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    else:
        file = weights_file(model)
        files = [] if file is None else [file]
    return {"the weights that it starts from": fingerprint(*files)} if files else {}


def _facts(values: Mapping[str, Any], prefix: str = "", depth: int = 4) -> dict[str, str]:
    """Return digests of values by dotted name; deep mappings get one digest."""
    found: dict[str, str] = {}
    for name, value in values.items():
        deeper = isinstance(value, dict) and depth > 1
        full = f"{prefix}{name}"
        found |= _facts(value, f"{full}.", depth - 1) if deeper else {full: _digest(value)}
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe how samples differ from those of the run's start."""
    changes = []
    if saved["classes"] != now["classes"]:
        missing = [name for name in saved["classes"] if name not in now["classes"]]
        new = [name for name in now["classes"] if name not in saved["classes"]]
        changes += [f"the classes {abbreviate(missing)} were removed"] if missing else []
        changes += [f"the classes {abbreviate(new)} were added"] if new else []
        changes += [] if missing or new else ["the classes are in a different order"]
    for role in ("training", "validation"):
        (before, was), (count, is_now) = saved[role], now[role]
        if before != count:
            changes.append(f"the number of {role} samples changed from {before} to {count}")
        elif was != is_now:
            changes.append(f"the names, labels or contents of the {count} {role} samples changed")
    if not changes and saved["steps"] != now["steps"]:
        changes.append(f"the number of steps per epoch changed from {saved['steps']} to {now['steps']}")
    return changes


def other_differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe what else differs; entries that a state of an earlier version lacks are not compared."""
    before, after = saved.get("learns_from", {}), now.get("learns_from", {})
    changes = [f"{what} changed" for what in before if after.get(what) != before[what]]
    if saved.get("new") is not None and saved["new"] != now.get("new"):
        changes.append("model.checkpoint provides weights for different parts of the model")
    before, after = saved.get("spec", {}), now.get("spec", {})
    other = [name for name in before if name in after and before[name] != after[name]]
    return changes + ([f"the description of its inputs and outputs changed: {abbreviate(other)}"] if other else [])
