"""Images and questions as tensors, of batches and of single questions."""

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
    """Makes tensors of images and questions."""

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return what makes tensors of images and questions."""
        return QuestionEncoder(self.spec.framing, Reading.of(self.spec))

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return what normalises images."""
        return NormalizeImages(Normalize(self.spec.mean, self.spec.std, device=device))

    @staticmethod
    def ask(model: nn.Module, batch: Batch) -> Any:
        """Return what the model answers."""
        given = {name: batch[name] for name in INPUTS if name in batch}
        base: Any = getattr(model, "base_model", model)
        whole = embed_whole(base.embeddings, batch["image"])
        if whole is None:
            return model(**given, pixel_values=batch["image"])
        everywhere = torch.ones(whole.shape[:2], dtype=torch.long, device=whole.device)
        return model(**given, image_embeds=whole, pixel_mask=everywhere)

    def graph_inputs(self) -> tuple[str, ...]:
        """Return tokens, which of them count, perhaps their kinds, and the image."""
        return (*(INPUTS if Reading.of(self.spec).kinds else INPUTS[:2]), "image")

    def pack(self, batch: Batch) -> Tensor:
        """Take questions and images out of a batch, as one tensor of whole numbers, B, 1, all of them."""
        parts = [batch.pop(name) for name in self.graph_inputs()]
        return torch.cat([part.flatten(1).int() for part in parts], dim=1)[:, None]

    def unpack(self, packed: Tensor) -> Batch:
        """Return rows of tokens, B, N, and images, uint8 B, C, S, S, by name."""
        *names, image = self.graph_inputs()
        side, width = self.spec.img_size, Reading.of(self.spec).limit
        *rows, pixels = packed[:, 0].split([width] * len(names) + [self.spec.in_chans * side * side], dim=1)
        found = {name: row.long() for name, row in zip(names, rows, strict=True)}
        return {**found, image: pixels.to(torch.uint8).unflatten(1, (self.spec.in_chans, side, side))}

    def pack_sample(self, sample: Sample) -> Tensor:
        """Return an image and a question as one tensor, 1, all of them; refuses what cannot be asked by TextError."""
        encode = self.encoder()
        return self.pack(encode.collate([encode(sample)]))[0]
