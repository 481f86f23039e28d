"""Training and validation pictures: as a set gives them."""

from dataclasses import dataclass

from .source import Source, Stream

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "dev")
TEST = ("test", "testing")


@dataclass(frozen=True)
class Splits:
    """What a set on disk has of its own, before anything is held out.

    Args:
        train: the training pictures.
        val: the validation pictures, or None if the set has none.
        notes: plain remarks for the log.
    """

    train: Source | Stream
    val: Source | None = None
    notes: tuple[str, ...] = ()


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
