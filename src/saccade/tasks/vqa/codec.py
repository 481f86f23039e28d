"""Codec of visual question answering."""

from typing import Any

import torch
from torch import Tensor, nn

from ...data.augment import Normalize
from ...data.feed import Batch, Expand
from ...data.framing import Encoder
from ...data.source import Sample
from ...settings import AugmentConfig, LossConfig
from ..classification.codec import OneOfCodec
from ..text.tokens import INPUTS, Reading
from .encoding import NormalizeImages, QuestionEncoder, embed_whole


class QuestionCodec(OneOfCodec):
    """Encodes images and questions."""

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of images and questions."""
        return QuestionEncoder(self.spec.framing, Reading.of(self.spec))

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return the normalisation of images."""
        return NormalizeImages(Normalize(self.spec.mean, self.spec.std, device=device))

    @staticmethod
    def ask(model: nn.Module, batch: Batch) -> Any:
        """Run a model on images and questions."""
        given = {name: batch[name] for name in INPUTS if name in batch}
        base: Any = getattr(model, "base_model", model)
        whole = embed_whole(base.embeddings, batch["image"])
        if whole is None:
            return model(**given, pixel_values=batch["image"])
        everywhere = torch.ones(whole.shape[:2], dtype=torch.long, device=whole.device)
        return model(**given, image_embeds=whole, pixel_mask=everywhere)

    def graph_inputs(self) -> tuple[str, ...]:
        """Return token ids, attention mask, optionally token types, and the image."""
        return (*(INPUTS if Reading.of(self.spec).kinds else INPUTS[:2]), "image")

    def pack(self, batch: Batch) -> Tensor:
        """Pack questions and images of a batch into one integer tensor, B, 1, N."""
        parts = [batch.pop(name) for name in self.graph_inputs()]
        return torch.cat([part.flatten(1).int() for part in parts], dim=1)[:, None]

    def unpack(self, packed: Tensor) -> Batch:
        """Unpack token rows, B, N, and images, uint8 B, C, S, S, by name."""
        *names, image = self.graph_inputs()
        side, width = self.spec.img_size, Reading.of(self.spec).limit
        *rows, pixels = packed[:, 0].split([width] * len(names) + [self.spec.in_chans * side * side], dim=1)
        found = {name: row.long() for name, row in zip(names, rows, strict=True)}
        return {**found, image: pixels.to(torch.uint8).unflatten(1, (self.spec.in_chans, side, side))}

    def pack_sample(self, sample: Sample) -> Tensor:
        """Pack an image and a question into one tensor, 1, N; raises TextError for invalid questions."""
        encode = self.encoder()
        return self.pack(encode.collate([encode(sample)]))[0]
