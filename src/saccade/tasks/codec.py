"""The role Codec: encodes samples to tensors and decodes outputs, for training and exported graphs."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..data.augment import Augment, Follow, keep_targets
from ..data.feed import Batch, Expand, Feed
from ..data.framing import Encoder, ImageEncoder
from ..data.source import Source, Stream
from ..data.spec import InputSpec
from ..data.validation import Validation
from ..settings import AugmentConfig, LossConfig, TrainConfig


class Codec:
    """Encodes samples and decodes raw outputs; the default is for images and numbers.

    Args:
        spec: the model's inputs and outputs.

    Attributes:
        output: name of the raw output in an exported graph.
        target_names: keys of a batch that are targets.
    """

    output: ClassVar[str] = "output"
    target_names: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    # From samples to a batch

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of samples: for training with `augment`, else deterministic."""
        framing = self.spec.framing
        return ImageEncoder(framing if augment is None else type(framing)(**{**vars(framing), "config": augment}))

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return the function that mixes targets; by default mixing is refused."""
        return keep_targets

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return the augmentation of batches."""
        targets = self.mixed_targets(augment, loss)
        return Augment(
            augment, mean=self.spec.mean, std=self.spec.std, img_size=self.spec.img_size, targets=targets, device=device
        )

    def own_batches(
        self,
        train: Source | Stream,
        val: Source,
        config: TrainConfig,
        *,
        device: torch.device,
        rank: int,
        world: int,
    ) -> tuple[Feed, Validation] | None:
        """Return the task's own training and validation batches; None uses the default ones for images."""
        return None

    # Model inputs, also of exported graphs

    @staticmethod
    def ask(model: nn.Module, batch: Batch) -> Any:
        """Run a model on a batch's inputs."""
        return model(batch["image"])

    def graph_inputs(self) -> tuple[str, ...]:
        """Return the names of model inputs in a batch and an exported graph."""
        return ("image",)

    def pack(self, batch: Batch) -> Tensor:
        """Pack a batch's model inputs into one tensor, B, ..."""
        return batch.pop("image")

    def unpack(self, packed: Tensor) -> Batch:
        """Unpack the tensor of `pack` to inputs by name."""
        return {"image": packed}

    def stack(self, samples: Sequence[Tensor]) -> Tensor:
        """Stack packed samples into a packed batch."""
        return torch.stack(list(samples))

    # Decoding

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Decode raw outputs, B, ..., for example to probabilities."""
        return output

    def unframe(self, row: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Transform one sample's result of `read_output` to its original image of the given size."""
        return row

    def gap(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the largest difference between two raw outputs of the same samples, B, ..."""
        return float(np.abs(first - second).max())
