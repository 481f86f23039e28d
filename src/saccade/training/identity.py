"""What a run's pictures are, so that a run that goes on can tell whether they are still the same."""

from typing import Any

from ..data.held_out import some
from ..data.source import Source, Stream


def identity_of(train: Source | Stream, val: Source, *, steps: int) -> dict[str, Any]:
    """Return what tells pictures apart, as JSON holds it; where they lie does not matter.

    Args:
        train: the training pictures.
        val: the validation pictures.
        steps: of an epoch.
    """
    return {
        "classes": list(train.outputs),
        "training": [train.length, ""] if isinstance(train, Stream) else [len(train), train.fingerprint()],
        "validation": [len(val), val.fingerprint()],
        "steps": steps,
    }


def differences(begun: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return in words how pictures differ from those a run was begun with."""
    told = []
    if begun["classes"] != now["classes"]:
        gone = [name for name in begun["classes"] if name not in now["classes"]]
        new = [name for name in now["classes"] if name not in begun["classes"]]
        told += [f"the classes {some(gone)} are gone"] if gone else []
        told += [f"the classes {some(new)} are new"] if new else []
        told += [] if gone or new else ["the classes are in another order"]
    for role in ("training", "validation"):
        (before, was), (count, is_now) = begun[role], now[role]
        if before != count:
            told.append(f"there were {before} {role} pictures and are {count}")
        elif was != is_now:
            told.append(f"the {count} {role} pictures have other names, labels or pixels")
    if not told and begun["steps"] != now["steps"]:
        told.append(f"an epoch had {begun['steps']} steps and has {now['steps']}")
    return told
