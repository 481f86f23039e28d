"""Training and validation splits: by the dataset's names, or held out by a hash of names."""

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "dev")
TEST = ("test", "testing")
LETTERS = 200  # longest name in a message


def choose_split(names: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Find the training and the validation split among split names.

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
        notes = (f"{unused}to validate on it, pass it as the validation set",) if unused else ()
        return {"train": found["train"], "val": found["val"]}, notes
    if "test" in found:
        return (
            {"train": found["train"], "val": found["test"]},
            (f"there is no validation split: {found['test']!r} is used for validation",),
        )
    return {"train": found["train"]}, ()


def choose_held_out(keys: np.ndarray, labels: np.ndarray, *, share: float) -> np.ndarray:
    """Return a mask of images to hold out, N bool: those with the smallest keys of every class.

    The result does not depend on the images' order. Of a class of two or more, at least one image is held out and at
    least one is kept; a class of one keeps it. Duplicates of an image are never split.
    """
    if not 0 < share < 1:
        raise ValueError(f"val_share={share}: it must be between 0 and 1, such as 0.1")
    held = np.zeros(len(labels), dtype=bool)
    order = np.lexsort((keys, labels))
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    for members in np.split(order, starts[1:]):
        if len(members) > 1:
            held[members[: min(max(round(share * len(members)), 1), len(members) - 1)]] = True
    held &= ~np.isin(keys, np.intersect1d(keys[held], keys[~held]))
    if not held.any():
        raise ValueError(
            f"no validation samples can be held out of {len(labels)}: no class has two different samples; add "
            "samples, or give separate validation samples"
        )
    return held


def held_out_notes(held: np.ndarray, alone: Sequence[str], *, share: float, seed: int) -> tuple[str, ...]:
    """Return remarks on the held-out images."""
    note = f"{held.sum()} of {len(held)} samples are held out for validation (share {share:g}, seed {seed})"
    return (
        note,
        *([f"classes with a single sample, which is kept for training: {abbreviate(alone)}"] if alone else []),
    )


def identity(name: str, seed: int | None = None) -> int:
    """Hash a name (and a seed) to int64, the same on every machine."""
    # File systems differ in their Unicode normalisation.
    text = unicodedata.normalize("NFC", name)
    text = text if seed is None else f"{seed}\0{text}"
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def abbreviate(names: Sequence[str], most: int = 5) -> str:
    """Shorten a list of names for a message."""
    shown = ", ".join(repr(name if len(name) <= LETTERS else f"{name[:LETTERS]}...") for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
