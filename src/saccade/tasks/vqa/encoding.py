"""Images and questions as tensors: of samples, of batches, and packed as one tensor for those who ask a model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.augment import Normalize
from ...data.feed import Batch
from ...data.framing import Encoded, Framing
from ...data.source import Sample
from ..text.feed import KeepTexts
from ..text.tokens import Reading


@dataclass(frozen=True)
class QuestionEncoder:
    """Makes tensors of an image and a question: the whole image made square, the question in a row of fixed width."""

    framing: Framing
    reading: Reading

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        image, reading = sample.inputs["image"], self.reading
        tokens = reading.encode([(sample.inputs["text"],)], names=[f"the question on {sample.name}"])
        row = tokens.rows(torch.tensor([0]), reading.limit, pad=reading.pad, kinds=reading.kinds)
        height, width = image.shape[:2]
        found: Encoded = {"image": self.framing.image(image, (0.0, 0.0, float(width), float(height)))}
        found |= {name: part[0] for name, part in row.items()}
        if sample.target is not None:
            found["target"] = torch.as_tensor(np.asarray(sample.target))
        return found

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Return samples as a batch."""
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


@dataclass(frozen=True)
class NormalizeImages(KeepTexts):
    """Makes training batches of bytes and tokens: nothing is left to chance."""

    normalize: Normalize

    def plain(self, batch: Batch) -> Batch:
        """Return the batch as a model is asked about it."""
        return {**batch, "image": self.normalize(batch["image"])}


def embed_whole(embeddings: Any, images: Tensor) -> Tensor | None:
    """Return ViLT's embeddings of whole normalised images of one size: B, 1 + N, C, in the order of rows and columns.

    ViLT itself draws the order of patches anew each time, which changes no answer and can be neither traced nor
    compiled. None where its configuration asks for some of the patches only, which is left to it.
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
    # Not len(images), which a traced graph would take for a constant.
    first = (embeddings.cls_token + place[:, :1]).expand(images.shape[0], -1, -1)
    return embeddings.dropout(torch.cat([first, (patches + grid).flatten(2).mT], dim=1))
