"""Label maps on disk: the top classes of every position of every image, in safetensors, read by image name."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from ...layers.numerics import upcast
from ...settings import ConfigError
from ...settings.values import require_choice
from ...support.files import fingerprint, open_regular, read_small, whole_file, write_text
from .teacher import SoftLabels, TeacherLabels, Values, resample

MANIFEST = "labels.json"
FORMAT = 1
MANIFEST_BYTES, MOST_CLASSES = 2**26, 2**20


class LabelMaps:
    """Reads label maps written by `save_label_maps`, one image at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        manifest = _read_manifest(self.path)
        self.num_classes: int = manifest["num_classes"]
        self.values: Values = manifest["values"]
        self.shards: list[str] = manifest["shards"]
        self.classes: tuple[str, ...] | None = tuple(manifest["classes"]) if manifest.get("classes") else None
        self._files: dict[str, Any] = {}
        self._rows: dict[str, tuple[str, int]] = {}
        for shard in self.shards:
            self._rows |= {name: (shard, row) for row, name in enumerate(self._names(shard))}
        if len(self._rows) != manifest["images"]:
            raise OSError(
                f"{self.path} holds {len(self._rows)} images, but its {MANIFEST} counts {manifest['images']}; a file "
                "was replaced. Make the maps again"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}  # copies and other processes reopen files

    def __getitem__(self, name: str) -> Tensor:
        """Return an image's map of all classes, classes, H, W: probabilities or logits, as saved."""
        index, value = self.best(name)
        return self._fill(index[None], value[None])[0]

    def checked(self, classes: Sequence[str]) -> "LabelMaps":
        """Return the maps if they have these classes and equal sizes, as training requires."""
        if self.classes is not None and self.classes != tuple(classes):
            raise ConfigError(
                f"the label maps in {self.path} are for the classes {', '.join(self.classes[:5])}, ..., but the data "
                f"has {', '.join(classes[:5])}, ...; make maps of this data: saccade data labels"
            )
        sizes = {tuple(self._open(shard).get_slice("index").get_shape()[1:]) for shard in self.shards}
        if len(sizes) > 1:
            raise ConfigError(
                f"the label maps in {self.path} have {len(sizes)} different sizes, such as {sorted(sizes)[0]}; "
                "training reads them in batches: make them from images of one size, as saccade data labels does"
            )
        return self

    def fingerprint(self) -> str:
        """Return the fingerprint of the maps."""
        return fingerprint(self.path / MANIFEST, *(self.path / shard for shard in self.shards))

    def align(self, index: Tensor, value: Tensor, grid: tuple[int, int], *, boxes: Tensor, flips: Tensor) -> SoftLabels:
        """Return labels of regions by RoIAlign.

        Args:
            boxes: left, top, right and bottom of the regions, as fractions of the images, B, 4.
            flips: whether they were flipped horizontally afterwards, B bool.
        """
        full = self._fill(index.long(), value.float())
        cells = boxes.to(full) * full.new_tensor([full.shape[3], full.shape[2]] * 2)
        labels = SoftLabels(resample(full, (1, 1), cells)[:, :, 0, 0], resample(full, grid, cells))
        dense = torch.where(flips[:, None, None, None], labels.dense.flip(3), labels.dense)
        labels = labels._replace(dense=dense)
        return SoftLabels(*(part.softmax(1) for part in labels)) if self.values == "logits" else labels

    def read(
        self,
        names: Sequence[str],
        grid: tuple[int, int],
        *,
        crops: Tensor | None = None,
        flips: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> SoftLabels:
        """Return labels of images, or of crops, by RoIAlign.

        Args:
            crops: top, left, height and width of the crops, as fractions of the images, B, 4.
            flips: whether they were flipped horizontally afterwards, B.
        """
        boxes = _boxes(crops, len(names))
        if flips is not None and tuple(flips.shape) != (len(names),):
            raise ValueError(
                f"flips of shape {tuple(flips.shape)} were given for {len(names)} images; give one flip per image"
            )
        best = [self.best(name) for name in names]
        sizes: dict[torch.Size, list[int]] = {}  # maps of equal size are processed together
        for number, (index, _) in enumerate(best):
            sizes.setdefault(index.shape, []).append(number)
        mirrored = torch.zeros(len(names), dtype=torch.bool) if flips is None else flips.bool().cpu()
        parts = []
        for numbers in sizes.values():
            index, value = (torch.stack([best[n][part] for n in numbers]).to(device) for part in (0, 1))
            parts.append(self.align(index, value, grid, boxes=boxes[numbers], flips=mirrored[numbers].to(value.device)))
        order = torch.tensor([n for numbers in sizes.values() for n in numbers]).argsort()
        return SoftLabels(*(torch.cat(part)[order] for part in zip(*parts, strict=True)))

    def best(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the top classes of an image and their values, k, H, W."""
        if name not in self:
            some = ", ".join(repr(known) for known in list(self._rows)[:3])
            raise ValueError(
                f"{self.path} has no label map of {name!r}; it has those of {len(self)} images ({some}, ...). Give "
                "the names that were used when the maps were made, or make the map of this image"
            )
        shard, row = self._rows[name]
        file = self._open(shard)
        index, value = (torch.from_numpy(file.get_slice(key)[row].astype(kind)) for key, kind in KINDS)
        lowest, highest = int(index.min()), int(index.max())
        if lowest < 0 or highest >= self.num_classes:
            wrong = lowest if lowest < 0 else highest
            raise OSError(
                f"{self.path / shard} contains the class {wrong}, but there are {self.num_classes} classes; make the "
                "maps again"
            )
        return index, value

    def _fill(self, index: Tensor, value: Tensor) -> Tensor:
        """Return maps of all classes, B, classes, H, W, from the top ones, B, k, H, W."""
        full = torch.zeros(len(index), self.num_classes, *index.shape[2:], device=value.device)
        left = self.num_classes - index.shape[1]
        if self.values == "logits":
            return full.scatter(1, index, value)
        if left:
            full += (1 - value.sum(1, keepdim=True)).clamp_min(0) / left  # distribute the rest evenly
        full = full.scatter(1, index, value)
        return full / full.sum(1, keepdim=True)  # corrects rounding of half precision

    def _names(self, shard: str) -> list[str]:
        """Return the image names of a file; refuse other files."""
        file = self._open(shard)
        try:
            names = json.loads((file.metadata() or {}).get("names", "[]"))
            shapes = [file.get_slice(kind).get_shape() for kind, _ in KINDS]
        except (SafetensorError, ValueError, RecursionError):
            names, shapes = None, []
        sound = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not sound or len(shapes[0]) != 4 or shapes[0] != shapes[1] or shapes[0][0] != len(names) or 0 in shapes[0]:
            raise OSError(
                f"{self.path / shard} does not contain label maps in the expected format; make the maps again"
            )
        return names

    def _open(self, shard: str) -> Any:
        if shard not in self._files:
            try:
                open_regular(self.path / shard).close()
                self._files[shard] = safe_open(self.path / shard, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise OSError(
                    f"{self.path / shard} cannot be read ({error}); it is missing, truncated or damaged. Copy it "
                    "again, or make the maps again"
                ) from None
        return self._files[shard]


KINDS = (("index", np.int64), ("value", np.float32))


def save_label_maps(
    path: str | os.PathLike[str],
    maps: Iterable[tuple[str, Tensor]],
    *,
    top: int = 5,
    values: Values = "probabilities",
    shard_size: int = 4096,
    classes: Sequence[str] | None = None,
) -> LabelMaps:
    """Save the top classes of every position of every image; return a reader.

    Args:
        path: folder to create; refused if it has label maps.
        maps: name and map, classes, H, W, of each image.
        top: number of classes to keep for each position.
        values: kind of the values, "probabilities" or "logits" (as in the published maps).
        shard_size: most images in a file.
        classes: class names, to check against the training data.
    """
    require_choice("values", values, ("probabilities", "logits"))
    folder = Path(path)
    if (folder / MANIFEST).exists():
        raise FileExistsError(f"{folder} already holds label maps; give another folder, or remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[str] = []
    names: set[str] = set()
    waiting: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    size: tuple[int, ...] = ()
    num_classes: int | None = None

    def write() -> None:
        shards.append(f"labels-{len(shards):05d}.safetensors")
        _write_shard(folder / shards[-1], waiting)
        waiting.clear()

    for name, dense in maps:
        if name in names:
            raise ValueError(f"two images are named {name!r}; give unique names, such as paths within the dataset")
        if dense.ndim != 3 or (num_classes is not None and dense.shape[0] != num_classes):
            raise ValueError(
                f"{name!r} has a map of shape {tuple(dense.shape)}; maps must be classes, H, W, all with the same "
                f"number of classes ({num_classes or 'any number'})"
            )
        num_classes = dense.shape[0]
        best = _pick(name, dense, min(top, num_classes))
        if waiting and (len(waiting) == shard_size or best[0].shape != size):
            write()
        names.add(name)
        waiting[name], size = best, best[0].shape
    if num_classes is None:
        raise ValueError("no images were given; label maps need at least one")
    write()
    manifest = {
        "format": FORMAT,
        "num_classes": num_classes,
        "values": values,
        "images": len(names),
        "shards": shards,
        "classes": None if classes is None else list(classes),
    }
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1))  # written last, as a sign of completeness
    return LabelMaps(folder)


def make_label_maps(
    path: str | os.PathLike[str],
    teacher: TeacherLabels,
    images: Iterable[tuple[str, Tensor]],
    *,
    batch_size: int = 32,
    top: int = 5,
    classes: Sequence[str] | None = None,
) -> LabelMaps:
    """Save a teacher's label maps; return a reader.

    Args:
        teacher: the teacher, whose `values` are saved.
        images: name and image, C, H, W, of each; neighbours of equal size share a batch.
    """

    def label() -> Iterator[tuple[str, Tensor]]:
        device = next((p.device for p in teacher.model.parameters()), None)
        for names, batch in _batches(images, batch_size):
            dense = teacher.logits(batch.to(device))[1]
            yield from zip(names, dense.softmax(1) if teacher.values == "probabilities" else dense, strict=True)

    return save_label_maps(path, label(), top=top, values=teacher.values, classes=classes)


def _pick(name: str, dense: Tensor, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the top classes of an image and their values, k, H, W."""
    value, index = upcast(dense.detach()).cpu().topk(top, dim=0)
    if not value.isfinite().all():
        raise ValueError(f"the map of {name!r} is not finite; check the image and the teacher's precision")
    kind = np.uint16 if dense.shape[0] <= 2**16 else np.int32
    return index.numpy().astype(kind), value.numpy().astype(np.float16)


def _batches(images: Iterable[tuple[str, Tensor]], size: int) -> Iterator[tuple[list[str], Tensor]]:
    names: list[str] = []
    batch: list[Tensor] = []
    for name, image in images:
        if batch and (len(batch) == size or batch[0].shape != image.shape):
            yield names, torch.stack(batch)
            names, batch = [], []
        names.append(name)
        batch.append(image)
    if batch:
        yield names, torch.stack(batch)


def _write_shard(path: Path, best: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    index, value = map(np.stack, zip(*best.values(), strict=True))
    with whole_file(path) as draft:
        save_file({"index": index, "value": value}, draft, metadata={"names": json.dumps(list(best))})


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(read_small(path / MANIFEST, most=MANIFEST_BYTES))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} has no {MANIFEST}; give a folder that save_label_maps has written completely, or make the maps "
            "again"
        ) from None
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path / MANIFEST} is damaged ({error}); copy it again, or make the maps again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise OSError(f"{path / MANIFEST} is not of format {FORMAT}, which this version reads; make the maps again")
    count, shards, classes = manifest.get("num_classes"), manifest.get("shards"), manifest.get("classes")
    named = classes is None or (isinstance(classes, list) and all(isinstance(name, str) for name in classes))
    beside = isinstance(shards, list) and all(
        isinstance(name, str) and Path(name).name == name[:255] for name in shards
    )
    manifest.setdefault("images", manifest.get("pictures"))  # the key in earlier versions
    known = manifest.get("values") in ("probabilities", "logits") and type(manifest.get("images")) is int
    if type(count) is not int or not 0 < count <= MOST_CLASSES or not (named and beside and known):
        raise OSError(
            f"{path / MANIFEST} does not list the classes, the number of images and the files; make the maps again"
        )
    return manifest


def _boxes(crops: Tensor | None, count: int) -> Tensor:
    """Convert crops to left, top, right, bottom, as fractions of the image, on the CPU."""
    if crops is None:
        return torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(count, 4)
    if tuple(crops.shape) != (count, 4):
        raise ValueError(
            f"crops of shape {tuple(crops.shape)} were given; they must have the shape {count}, 4: top, left, "
            "height, width"
        )
    top, left, height, width = crops.detach().cpu().float().unbind(1)
    boxes = torch.stack([left, top, left + width, top + height], 1)
    slack = 1e-3
    inside = (boxes >= -slack).all() and (boxes <= 1 + slack).all() and (height > 0).all() and (width > 0).all()
    if not inside:
        raise ValueError(
            "crops extend beyond the image; give top, left, height and width as fractions of it, from 0 to 1"
        )
    return boxes
