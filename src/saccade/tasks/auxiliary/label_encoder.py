"""Samples with their stored labels: read beside the image, and moved by the same frame."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...data.framing import Encoded, Encoder
from ...data.source import Sample
from .label_maps import LabelMaps


@dataclass(frozen=True)
class LabelEncoder:
    """Adds to a sample the best classes of its image's places, and which part of the image its image shows.

    Args:
        encode: makes tensors of samples, by a frame.
        maps: of the samples, by their names.
    """

    encode: Encoder
    maps: LabelMaps

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        found = self.encode(sample, word)
        framing: Any = getattr(self.encode, "framing", None)
        height, width = sample.inputs["image"].shape[:2]
        left, top, right, bottom = framing.box(height, width, word)
        index, value = self.maps.best(sample.name)
        box = torch.tensor([left / width, top / height, right / width, bottom / height])
        return {**found, "label_index": index.int(), "label_value": value.half(), "label_box": box}

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Return samples as a batch."""
        return self.encode.collate(samples)
