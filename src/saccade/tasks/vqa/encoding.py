"""Encoding of images and questions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.augment import Normalize
from ...data.feed import Batch
from ...data.framing import Encoded, Framing
from ...data.rand_augment import Step
from ...data.source import Sample
from ...settings import AugmentConfig
from ..text.feed import KeepTexts
from ..text.tokens import Reading
from .patches import PatchFraming, join_patches, split_patches
from .vilt_augment import ViltStep

STEPS = {"timm": Step, "vilt": ViltStep}  # of RandAugment, by `augment.rand_kind`


@dataclass(frozen=True)
class QuestionEncoder:
    """Encodes an image, as a square or as patches, and a question padded to a fixed width."""

    framing: Framing | PatchFraming
    reading: Reading

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        image, reading = sample.inputs["image"], self.reading
        tokens = reading.encode([(sample.inputs["text"],)], names=[f"the question about {sample.name}"])
        row = tokens.rows(torch.tensor([0]), reading.limit, pad=reading.pad, kinds=reading.kinds)
        height, width = image.shape[:2]
        if isinstance(self.framing, PatchFraming):
            found: Encoded = self.framing(image)
        else:
            found = {"image": self.framing.image(image, (0.0, 0.0, float(width), float(height)))}
        found |= {name: part[0] for name, part in row.items()}
        if sample.target is not None:
            found["target"] = torch.as_tensor(np.asarray(sample.target))
        return found

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Collate samples into a batch."""
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


@dataclass(frozen=True)
class AugmentImages(KeepTexts):
    """Applies RandAugment to the images of a batch, if it is on, and normalises them."""

    normalize: Normalize
    config: AugmentConfig
    fill: Tensor  # colour outside of a moved image, C, 1, 1

    def __call__(self, batch: Batch, *, strong: bool = True) -> Batch:
        """Return the batch for training."""
        if strong and self.config.rand_ops:
            batch = {**batch, "image": self._augment(batch["image"], batch["key"], batch.get("grid"))}
        return super().__call__(batch, strong=strong)

    def _augment(self, images: Tensor, keys: Tensor, grid: Tensor | None) -> Tensor:
        """Return images from 0 to 1; those of patches are joined, size by size."""
        if grid is None:
            return self._of_one_size(images, keys)
        found = torch.zeros(images.shape, device=images.device)
        sizes, size_of = grid.unique(dim=0, return_inverse=True)
        for number, (rows, columns) in enumerate(sizes.tolist()):
            members = (size_of == number).nonzero()[:, 0]
            changed = self._of_one_size(join_patches(images[members], rows, columns), keys[members])
            found[members, : rows * columns] = split_patches(changed, images.shape[-1])
        return found

    def _of_one_size(self, images: Tensor, keys: Tensor) -> Tensor:
        images = images.float()
        for number in range(self.config.rand_ops):
            images = STEPS[self.config.rand_kind].draw(keys, number, self.config)(images, self.fill)
        return images / 255

    def plain(self, batch: Batch) -> Batch:
        """Return the batch for validation."""
        return {**batch, "image": self.normalize(batch["image"])}


def embed_whole(embeddings: Any, images: Tensor) -> Tensor | None:
    """Return ViLT's embeddings of normalised images of one size, B, 1 + N, C, in row-major order.

    ViLT itself shuffles patches, which does not change its output but can be neither traced nor compiled. None if its
    configuration samples a subset of patches.
    """
    patches: Tensor = embeddings.patch_embeddings(images)  # B, C, h, w
    height, width = patches.shape[2:]
    most = embeddings.config.max_image_length
    if isinstance(most, int) and 0 <= most < height * width:
        return None
    place: nn.Parameter = embeddings.position_embeddings
    side = embeddings.config.image_size // embeddings.config.patch_size
    grid = place[:, 1:].mT.unflatten(2, (side, side))
    grid = F.interpolate(grid, size=(height, width), mode="bilinear", align_corners=True)
    # Not len(images), which tracing makes a constant.
    first = (embeddings.cls_token + place[:, :1]).expand(images.shape[0], -1, -1)
    return embeddings.dropout(torch.cat([first, (patches + grid).flatten(2).mT], dim=1))
