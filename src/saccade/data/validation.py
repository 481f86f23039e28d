"""Validation pictures in order, each once, over all processes."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .loader import Framing, settle
from .picture import BadPicture
from .source import Source


class Validation:
    """The validation pictures of one process.

    Args:
        source: the pictures.
        framing: makes them square; not used on arrays, which are resized where their side differs.
        batch_size: of the batches.
        device: where the batches go.
        workers: processes that read files.
        keep: hold the framed pictures in memory once they were read.
        rank: of this process, which takes every world-th picture.
        world: how many processes there are.
    """

    def __init__(
        self,
        source: Source,
        *,
        framing: Framing,
        batch_size: int,
        device: torch.device,
        workers: int = 0,
        keep: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.source, self.batch_size, self.device = source, batch_size, device
        self.places = torch.arange(rank, len(source), world)
        self.labels = torch.from_numpy(source.labels)
        self.bad: dict[str, str] = {bad.name: bad.reason for bad in source.lost}
        self.keep, self.kept = keep, list[tuple[Tensor, Tensor]]()  # pictures and places of every batch
        array = source.array()
        if array is not None:
            pictures = torch.from_numpy(array[self.places.numpy()]).permute(0, 3, 1, 2).contiguous()
            self.pictures: Tensor | None = _resize(pictures, framing).to(device)
        else:
            self.pictures = None
            self.loader: DataLoader[Any] = DataLoader(
                _Reading(source, framing, self.places.tolist()),
                batch_size=batch_size,
                num_workers=workers,
                collate_fn=_collate,
                persistent_workers=workers > 0,
                worker_init_fn=settle if workers else None,
            )

    def __len__(self) -> int:
        return len(self.places)

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield pictures, uint8 B, C, H, W, labels, and places in the source; a bad picture is left out and named."""
        if self.pictures is not None:
            for begin in range(0, len(self.places), self.batch_size):
                places = self.places[begin : begin + self.batch_size]
                yield self.pictures[begin : begin + self.batch_size], self.labels[places].to(self.device), places
            return
        if self.kept:
            for pictures, places in self.kept:
                yield pictures.to(self.device), self.labels[places].to(self.device), places
            return
        read: list[tuple[Tensor, Tensor]] = []
        for pictures, places, bad in self.loader:
            for name, reason in bad:
                if name not in self.bad:
                    self.bad[name] = reason
                    warnings.warn(f"{name} cannot be read and is not counted: {reason}", stacklevel=2)
            if len(places):
                read += [(pictures, places)] if self.keep else []
                yield pictures.to(self.device), self.labels[places].to(self.device), places
        if self.keep:
            self.kept = read
            self.close()

    def close(self) -> None:
        """End the processes that read; they begin anew when there is more to read."""
        if self.pictures is None:
            self.loader._iterator = None


def _resize(pictures: Tensor, framing: Framing) -> Tensor:
    if framing.channels == 3 and pictures.shape[1] == 1:
        pictures = pictures.expand(-1, 3, -1, -1)
    if pictures.shape[-2:] == (framing.img_size, framing.img_size):
        return pictures
    size = (framing.img_size, framing.img_size)
    parts = [F.interpolate(x.float(), size, mode="bicubic", antialias=True) for x in pictures.split(1024)]
    return torch.cat([part.round_().clamp_(0, 255).to(torch.uint8) for part in parts])


class _Reading(Dataset[Any]):
    def __init__(self, source: Source, framing: Framing, places: list[int]) -> None:
        self.source, self.framing, self.places = source, framing, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, item: int) -> tuple[Tensor, int] | tuple[str, str]:
        place = self.places[item]
        try:
            return self.framing(self.source.read(place)), place
        except BadPicture as error:
            return error.name, error.reason


def _collate(items: list[Any]) -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
    good = [item for item in items if isinstance(item[0], Tensor)]
    bad = [item for item in items if not isinstance(item[0], Tensor)]
    pictures = torch.stack([picture for picture, _ in good]) if good else torch.empty(0)
    return pictures, torch.tensor([place for _, place in good], dtype=torch.int64), bad
