"""Codec of visual question answering."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.augment import Normalize
from ...data.feed import Batch, Expand
from ...data.framing import Encoder
from ...data.source import Sample
from ...settings import AugmentConfig, LossConfig
from ..classification.codec import OneOfCodec
from ..text.tokens import INPUTS, Reading
from .encoding import AugmentImages, QuestionEncoder, embed_whole
from .patches import PatchFraming, embed_patches


class QuestionCodec(OneOfCodec):
    """Encodes images and questions."""

    @property
    def patches(self) -> PatchFraming | None:
        """The framing that keeps the aspect ratio; None for squares."""
        patch = self.spec.extra.get("patch")
        return None if patch is None else PatchFraming(self.spec.img_size, patch, self.spec.in_chans)

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of images and questions."""
        return QuestionEncoder(self.patches or self.spec.framing, Reading.of(self.spec))

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return RandAugment, which pads with the mean or for ViLT with black, and the normalisation of images."""
        colour = [0.0 if augment.rand_kind == "vilt" else round(255 * value) for value in self.spec.mean]
        fill = torch.tensor(colour, device=device).float().view(-1, 1, 1)
        return AugmentImages(Normalize(self.spec.mean, self.spec.std, device=device), augment, fill)

    @staticmethod
    def ask(model: nn.Module, batch: Batch) -> Any:
        """Run a model on images and questions."""
        return model(**QuestionCodec.model_inputs(model, batch))

    @staticmethod
    def model_inputs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the arguments of a model for a batch, with embedded images."""
        given = {name: batch[name] for name in INPUTS if name in batch}
        base: Any = getattr(model, "base_model", model)
        if "grid" in batch:
            embedded, mask = embed_patches(base.embeddings, batch["image"], batch["grid"])
            return {**given, "image_embeds": embedded, "pixel_mask": mask}
        whole = embed_whole(base.embeddings, batch["image"])
        if whole is None:
            return {**given, "pixel_values": batch["image"]}
        everywhere = torch.ones(whole.shape[:2], dtype=torch.long, device=whole.device)
        return {**given, "image_embeds": whole, "pixel_mask": everywhere}

    def graph_inputs(self) -> tuple[str, ...]:
        """Return token ids, attention mask, optionally token types, the image, and its grid if it is in patches."""
        tokens = INPUTS if Reading.of(self.spec).kinds else INPUTS[:2]
        return (*tokens, "image") if self.patches is None else (*tokens, "image", "grid")

    def example_images(self, count: int) -> Batch:
        """Return black images to trace a graph with; those of patches have two sizes."""
        shape = (self.spec.in_chans, self.spec.img_size, self.spec.img_size)
        if self.patches is None:
            return {"image": torch.zeros(count, *shape, dtype=torch.uint8)}
        framed = [self.patches(np.zeros((60, 60 + 20 * (n % 2), shape[0]), dtype=np.uint8)) for n in range(count)]
        return {name: torch.stack([one[name] for one in framed]) for name in ("image", "grid")}

    def pack(self, batch: Batch) -> Tensor:
        """Pack questions and images of a batch into one integer tensor, B, 1, N."""
        parts = [batch.pop(name) for name in self.graph_inputs()]
        return torch.cat([part.flatten(1).int() for part in parts], dim=1)[:, None]

    def unpack(self, packed: Tensor) -> Batch:
        """Unpack token rows, B, N, and images, uint8 B, C, S, S, by name."""
        examples, width = self.example_images(1), Reading.of(self.spec).limit
        shapes = {name: examples[name].shape[1:] if name in examples else (width,) for name in self.graph_inputs()}
        parts = packed[:, 0].split([math.prod(shape) for shape in shapes.values()], dim=1)
        found = {name: part.unflatten(1, shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return {name: part.to(torch.uint8) if name == "image" else part.long() for name, part in found.items()}

    def pack_sample(self, sample: Sample) -> Tensor:
        """Pack an image and a question into one tensor, 1, N; raises TextError for invalid questions."""
        encode = self.encoder()
        return self.pack(encode.collate([encode(sample)]))[0]
