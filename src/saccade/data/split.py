"""Training and validation samples: as a set names them, or held out by name whatever the order and the machine."""

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "dev")
TEST = ("test", "testing")
LETTERS = 200  # of a name in a message


def choose_split(names: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Tell which of some split names is which.

    Returns:
        The names of "train" and, if there is one, "val", and remarks on it.
    """
    found: dict[str, str] = {}
    for name in names:
        for role, known in (("train", TRAIN), ("val", VAL), ("test", TEST)):
            if name.lower() in known:
                if role in found:
                    raise ValueError(f"both {found[role]!r} and {name!r} look like the {role} split; keep one of them")
                found[role] = name
    if "train" not in found:
        return {}, ()
    if "val" in found:
        unused = f"the split {found['test']!r} is not used; " if "test" in found else ""
        notes = (f"{unused}to validate on it, give it as the validation set",) if unused else ()
        return {"train": found["train"], "val": found["val"]}, notes
    if "test" in found:
        return (
            {"train": found["train"], "val": found["test"]},
            (f"there is no validation split: {found['test']!r} is used as one",),
        )
    return {"train": found["train"]}, ()


def choose_held_out(keys: np.ndarray, labels: np.ndarray, *, share: float) -> np.ndarray:
    """Return which images to hold out, N bool: of every class those whose keys are smallest.

    It depends on which images there are, not on their order. A class of two or more gives at least one and keeps at
    least one; a class of one keeps it. Of an image that is there several times, all stay in training if one does.
    """
    if not 0 < share < 1:
        raise ValueError(f"val_share={share} was given; it is a share above 0 and below 1, such as 0.1")
    held = np.zeros(len(labels), dtype=bool)
    order = np.lexsort((keys, labels))
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    for members in np.split(order, starts[1:]):
        if len(members) > 1:
            held[members[: min(max(round(share * len(members)), 1), len(members) - 1)]] = True
    held &= ~np.isin(keys, np.intersect1d(keys[held], keys[~held]))
    if not held.any():
        raise ValueError(
            f"no validation samples can be held out of {len(labels)}: no class has two that differ; add samples, or "
            "give validation samples of their own"
        )
    return held


def held_out_notes(held: np.ndarray, alone: Sequence[str], *, share: float, seed: int) -> tuple[str, ...]:
    """Return what the log should say about the choice."""
    note = f"{held.sum()} of {len(held)} samples are held out for validation (share {share:g}, seed {seed})"
    return (note, *([f"classes with one sample, which stays in training: {abbreviate(alone)}"] if alone else []))


def identity(name: str, seed: int | None = None) -> int:
    """Return an int64 that stands for a name (and a seed), the same on every machine."""
    # One spelling of an accented letter: file systems differ in which they return.
    text = unicodedata.normalize("NFC", name)
    text = text if seed is None else f"{seed}\0{text}"
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def abbreviate(names: Sequence[str], most: int = 5) -> str:
    """Return the first few of many names for a message."""
    shown = ", ".join(repr(name if len(name) <= LETTERS else f"{name[:LETTERS]}...") for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
