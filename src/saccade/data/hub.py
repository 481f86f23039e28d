"""Hugging Face datasets: by name, saved to disk, or as Parquet files with images (extra `stream`)."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..support.files import open_regular
from .draws import random_of, shuffled
from .image import BadSample, decode
from .reader import ReadOptions, holds, register_reader
from .source import Sample, Source, Splits, Stream
from .split import TEST, TRAIN, VAL, abbreviate, choose_split, identity
from .table import import_extra
from .targets import ClassTargets, numbered_classes

IMAGES = ("image", "img", "picture", "pixel_values", "jpg", "png")
LABELS = ("label", "labels", "fine_label", "class", "target", "cls")


@register_reader("hub")
class HubReader:
    """A Hugging Face dataset by name: `hf:NAME[:CONFIG]`, or streamed: `hf-stream:NAME`."""

    rank = 20

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec has this layout."""
        return spec.startswith(("hf:", "hf-stream:"))

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        return open_hub(spec, buffer=options.buffer)


@register_reader("saved")
class SavedReader:
    """A folder written by `datasets` with `save_to_disk`."""

    rank = 30

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec has this layout."""
        return (path / "dataset_dict.json").exists() or (path / "state.json").exists()

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        found = import_extra("datasets", package="datasets").load_from_disk(str(path))
        return _splits(found, where=str(path), roots=[path])


@register_reader("parquet")
class ParquetReader:
    """A folder of Parquet files with images."""

    rank = 70

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec has this layout."""
        return path.is_dir() and holds(path, "*.parquet")

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        return open_parquet(path)


class HubSource(Source):
    """Images of a Hugging Face dataset, by index.

    Args:
        dataset: a `datasets.Dataset` with a column of images and one of labels.
        prefix: the first part of the images' names; the second is the row.
        roots: folders that rows may name files in; paths are relative to the first.
    """

    def __init__(self, dataset: Any, *, prefix: str, roots: Sequence[Path] = ()) -> None:
        image, label = _columns(dataset, prefix)
        classes, labels = _labels(dataset, label)
        self.targets = ClassTargets.of(labels, tuple(classes), count=len(dataset), where=prefix)
        self.prefix = prefix
        self.image = image
        self.roots = tuple(roots)
        self.rows = np.arange(len(dataset))
        self.dataset = _undecoded(dataset.select_columns([image]), image)

    def name(self, index: int) -> str:
        """Return prefix and row number of an image."""
        return f"{self.prefix}[{self.rows[index]}]"

    def raw(self, index: int) -> Path | bytes:
        """Return the encoded image."""
        return _encoded(self.dataset[int(self.rows[index])][self.image], self.name(index), self.roots)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "HubSource":
        """Return the source of some of the images."""
        keep = np.asarray(indices, dtype=np.int64)
        part = copy.copy(self)
        part.targets, part.rows = self.targets.subset(keep), self.rows[keep]
        return part


class HubStream(Stream):
    """Images of a Hugging Face iterable dataset.

    Args:
        dataset: a `datasets.IterableDataset` with a column of images and one of labels.
        prefix: the first part of the images' names; the second is the row.
        buffer: size of each reader's shuffle buffer, in undecoded samples.
        roots: as for `HubSource`.
    """

    def __init__(self, dataset: Any, *, prefix: str, buffer: int, roots: Sequence[Path] = ()) -> None:
        self.image, self.label = _columns(dataset, prefix)
        names = getattr(dataset.features[self.label], "names", None)
        if not names:
            raise ValueError(
                f"{prefix}: the column {self.label!r} does not name its classes, which cannot be determined from a "
                "stream; use hf:NAME without streaming"
            )
        super().__init__(names)
        self.prefix = prefix
        self.buffer = buffer
        self.roots = tuple(roots)
        self.dataset = _undecoded(dataset, self.image)
        known = (dataset.info.splits or {}).get(str(dataset.split)) if dataset.info else None
        self.length = getattr(known, "num_examples", None)

    def samples(
        self, *, seed: int, epoch: int, rank: int, world: int, worker: int, workers: int, skip: int = 0
    ) -> Iterator[Sample | BadSample]:
        """Yield one reader's part of an epoch; see `Stream`."""
        reader, readers = rank * workers + worker, world * workers
        # Rows are numbered before shuffling; the library's own shuffling would rename images every epoch.
        rows = islice(enumerate(self.dataset), reader, None, readers)
        order = shuffled(rows, buffer=self.buffer, random=random_of(seed, epoch, reader))
        for number, row in islice(order, skip, None):
            name = f"{self.prefix}[{number}]"
            try:
                label = _checked(row[self.label], self.classes, name)
                image = decode(_encoded(row[self.image], name, self.roots), name=name, at_least=self.at_least)
                yield Sample({"image": image}, label, name, identity(name))
            except BadSample as bad:
                yield bad


def open_hub(spec: str, *, buffer: int = 4096) -> Splits:
    """Open `hf:NAME[:CONFIG]`, or stream the training split with `hf-stream:`; the library may download it."""
    kind, _, rest = spec.partition(":")
    name, _, config = rest.partition(":")
    if not name:
        raise ValueError(f"{spec!r} names no dataset; write hf:NAME or hf:NAME:CONFIG, such as hf:uoft-cs/cifar100")
    datasets = import_extra("datasets", package="datasets")
    load, roots = datasets.load_dataset, [*([Path(name)] if Path(name).is_dir() else []), *_caches(datasets)]
    found = load(name, config or None, streaming=kind == "hf-stream")
    if kind == "hf":
        return _splits(found, where=name, roots=roots)
    roles, notes = choose_split(list(found))
    if not roles:
        raise ValueError(f"{name} has the splits {abbreviate(list(found))}; one of them should be 'train'")
    train = HubStream(found[roles["train"]], prefix="train", buffer=buffer, roots=roots)
    if "val" not in roles:
        return Splits(train, None, notes)
    held = load(name, config or None, split=roles["val"])
    if train.length is None:  # a dataset whose card has no sizes has been counted by now
        train.length = getattr((held.info.splits or {}).get(roles["train"]), "num_examples", None)
    return Splits(train, HubSource(held, prefix=roles["val"], roots=roots), notes)


def open_parquet(path: Path) -> Splits:
    """Open Parquet files with images: one file, or a folder of files named after splits."""
    datasets = import_extra("datasets", package="datasets")
    if path.is_file():
        return _splits({"train": _parquet(datasets, [path])}, where=str(path), roots=[path.parent])
    groups: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*.parquet")):
        inner = file.relative_to(path).parts
        words = [file.stem.split("-")[0].split("_")[0], *inner[:-1]]
        role = next((word for word in words if word.lower() in TRAIN + VAL + TEST), "train")
        groups.setdefault(role, []).append(file)
    found = {role: _parquet(datasets, files) for role, files in groups.items()}
    return _splits(found, where=str(path), roots=[path])


def _parquet(datasets: Any, files: Sequence[Path]) -> Any:
    """Read Parquet files with the library; its errors on damaged files become readable ones."""
    for file in files:
        open_regular(file).close()
    try:
        return datasets.Dataset.from_parquet([str(file) for file in files])
    except Exception as error:  # library-specific types, and OSError without errno
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        named = abbreviate([file.name for file in files])
        raise ValueError(f"{named} cannot be read as Parquet, or is damaged ({reason}); download it again") from error


def _caches(datasets: Any) -> list[Path]:
    """Return the library's cache folders."""
    known = [getattr(datasets.config, name, None) for name in ("HF_DATASETS_CACHE", "HF_CACHE_HOME", "HF_HUB_CACHE")]
    return [Path(place) for place in known if place]


def _splits(found: Any, *, where: str, roots: Sequence[Path]) -> Splits:
    """Turn one dataset or several into training and validation splits."""
    if not isinstance(found, Mapping):
        return Splits(HubSource(found, prefix="train", roots=roots))
    roles, notes = choose_split(list(found))
    if not roles:
        raise ValueError(f"{where} has the splits {abbreviate(list(found))}; one of them should be 'train'")
    train = HubSource(found[roles["train"]], prefix="train", roots=roots)
    val = HubSource(found[roles["val"]], prefix=roles["val"], roots=roots) if "val" in roles else None
    return Splits(train, val, notes)


def _columns(dataset: Any, where: str) -> tuple[str, str]:
    names = list(dataset.features or {})
    image = next((name for name in names if type(dataset.features[name]).__name__ == "Image"), None)
    image = image or next((name for name in IMAGES if name in names), None)
    label = next((name for name in LABELS if name in names), None)
    label = label or next((name for name in names if type(dataset.features[name]).__name__ == "ClassLabel"), None)
    if image is None or label is None:
        raise ValueError(
            f"{where} has the columns {abbreviate(names)}; it needs a column of images, such as 'image', and a "
            "column of classes, such as 'label'"
        )
    return image, label


def _labels(dataset: Any, column: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Return classes and labels; text labels are sorted by name."""
    values = np.asarray(dataset.with_format("numpy")[column][:])
    names = getattr(dataset.features[column], "names", None)
    if names:
        return tuple(names), values
    if values.dtype.kind in "iu":
        return numbered_classes(int(values.max(initial=0)), where=f"the column {column!r}"), values
    classes, labels = np.unique(values.astype(str), return_inverse=True)
    return tuple(map(str, classes)), labels


def _undecoded(dataset: Any, image: str) -> Any:
    """Make the library return encoded images; saccade decodes and checks them."""
    return dataset.cast_column(image, import_extra("datasets", package="datasets").Image(decode=False))


def _checked(label: Any, classes: Sequence[str], name: str) -> int:
    if not isinstance(label, int | np.integer) or not 0 <= label < len(classes):
        reason = f"its label {label!r} is not one of the {len(classes)} classes, which are numbered from 0"
        raise BadSample(name, "it has no label" if label is None else reason)
    return int(label)


def _encoded(value: Any, name: str, roots: Sequence[Path]) -> Path | bytes:
    """Return a row's encoded image; a file that it names must be inside the dataset's folders."""
    if value is None or (value.get("bytes") is None and not value.get("path")):
        raise BadSample(name, "the row has no image")
    if value.get("bytes") is not None:
        return value["bytes"]
    try:
        found = ((roots[0] if roots else Path()) / value["path"]).resolve()
    except (OSError, ValueError, RuntimeError):  # a symlink loop or a zero byte
        raise BadSample(name, "the row refers to a file that does not exist", "missing") from None
    if not any(found.is_relative_to(root.resolve()) for root in roots):
        raise BadSample(
            name, "the row refers to a file outside the dataset, which is not read; store the bytes of the image"
        )
    return found
