"""The role of a task that makes tensors of samples, and answers of tensors: for training, and for exported graphs."""

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
    """Makes batches of samples and reads raw answers; without a class of its own, a task has images and numbers.

    Args:
        spec: what goes into the model and what comes out of it.

    Attributes:
        output: what the raw answer is called in an exported graph.
        target_names: what of a batch the model is not shown.
    """

    output: ClassVar[str] = "output"
    target_names: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    # From samples to a batch

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return what makes tensors of samples: with `augment` those of training, else without chance."""
        framing = self.spec.framing
        return ImageEncoder(framing if augment is None else type(framing)(**{**vars(framing), "config": augment}))

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return what targets become where images are mixed; refuses mixing unless a task knows what it means."""
        return keep_targets

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return what makes training batches of batches as they were read."""
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
        """Return training and validation batches of samples that are no images; None has them framed and read."""
        return None

    # What a model is asked, by an exported graph too

    @staticmethod
    def ask(model: nn.Module, batch: Batch) -> Any:
        """Return what a model answers to a batch's inputs."""
        return model(batch["image"])

    def graph_inputs(self) -> tuple[str, ...]:
        """Return the names of what a model is asked about, as a batch and an exported graph have them."""
        return ("image",)

    def pack(self, batch: Batch) -> Tensor:
        """Take what a model is asked about out of a batch, as one tensor, B, ..."""
        return batch.pop("image")

    def unpack(self, packed: Tensor) -> Batch:
        """Return what `pack` took, by name."""
        return {"image": packed}

    def stack(self, samples: Sequence[Tensor]) -> Tensor:
        """Return packed samples, one tensor each, as a packed batch."""
        return torch.stack(list(samples))

    # From a raw answer to what it says

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return raw answers, B, ..., as people and programs want them, such as shares that sum to one."""
        return output

    def unframe(self, row: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return what `read_output` gave for one sample in terms of its image, of that size, before it was framed."""
        return row

    def gap(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the largest difference between two raw answers to the same samples, B, ..."""
        return float(np.abs(first - second).max())
