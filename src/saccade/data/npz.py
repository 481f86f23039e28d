"""NumPy archives of images and labels, which are not unpickled."""

import json
import re
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..support.files import open_regular, physical_memory
from .arrays import TEST_NOTE
from .image import decode
from .reader import ReadOptions, register_reader
from .source import ArraySource, Splits
from .split import TEST, TRAIN, VAL, abbreviate
from .targets import numbered_classes

Part = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # images, labels and numbers of a split in one archive
IMAGES = ("x", "images", "image", "data", "pixels")  # in an archive, with or without a split's name
LABELS = ("y", "labels", "label", "targets", "target")
CLASSES = ("classes", "class_names", "label_names")
ROLES = {**dict.fromkeys(TRAIN, "train"), **dict.fromkeys(VAL, "val"), **dict.fromkeys(TEST, "test")}


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
            raise ValueError(f"{path} has different classes than {paths[0]}; give the parts of one dataset only")
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
        raise ValueError("some labels are names and others numbers; use the same kind for all images")
    found = sorted({name for labels in every for name in np.unique(labels).astype(str).tolist()})
    classes = classes or tuple(found)
    if unknown := [name for name in found if name not in classes]:
        raise ValueError(f"the labels {abbreviate(unknown)} are not among the classes {abbreviate(classes)}")
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
        raise ValueError(f"{path} is not a NumPy archive, or is damaged{detail}; save it with numpy.savez") from error
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
                    f"{path} holds arrays of Python objects, which are pickles and not opened; save plain uint8 "
                    "images of one size and integer labels with numpy.savez"
                ) from error
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ValueError(f"{path} cannot be read: {detail}; download or save it again") from error
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
        raise ValueError(f"the parts of {prefix} have images of different sizes; give the parts of one dataset only")
    ids = [index for _, _, index in parts if index is not None]
    return ArraySource(
        np.concatenate([images for images, _, _ in parts]),
        np.concatenate([labels for _, labels, _ in parts]),
        classes=classes,
        prefix=prefix,
        ids=np.concatenate(ids) if len(ids) == len(parts) else None,
    )
