"""Plain classification."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.numerics import upcast
from .task import Task


class Classify(Task):
    """A classifier under cross-entropy.

    Args:
        model: maps images to logits, or to an object that holds `logits`, as Hugging Face's do.
        label_smoothing: share of a target spread evenly over all classes.
        class_weights: how much each class counts, num_classes.
    """

    class_weights: Tensor | None

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} was given; it is a share, from 0 to below 1")
        self.model = model
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(
        self,
        images: Tensor,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002
        **step: Any,
    ) -> dict[str, Tensor]:
        """Classify images.

        Args:
            images: B, C, H, W.
            targets: class indices, B, or shares of classes, B, num_classes; None to only answer.
            generator: not needed here.
            step: nothing here.

        Returns:
            "output", the logits, and with targets "loss" and "classification".
        """
        if step:
            raise TypeError(f"Classify was given {', '.join(step)}, which it has no use for")
        return self.score(self.model(images), targets)

    def score(self, answer: Any, targets: Tensor | None) -> dict[str, Tensor]:
        """Compare what the model returned with the targets."""
        logits = read_logits(answer)
        if targets is None:
            return {"output": logits}
        loss = classification_loss(
            logits, targets, label_smoothing=self.label_smoothing, class_weights=self.class_weights
        )
        return {"loss": loss, "output": logits, "classification": loss.detach()}


def classification_loss(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy of logits, B, K, to class indices, B, or shares of classes, B, K."""
    if targets.is_floating_point() and targets.shape != logits.shape:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} were given as shares of classes for logits of shape "
            f"{tuple(logits.shape)}; give the same shape, or class indices as integers of shape ({logits.shape[0]},)"
        )
    logits = upcast(logits)
    if targets.is_floating_point():
        targets = targets.to(logits.dtype)
    return F.cross_entropy(logits, targets, weight=class_weights, label_smoothing=label_smoothing)


def read_logits(answer: Any) -> Tensor:
    """Return the logits of a model's answer."""
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned {type(answer).__name__}; a task for classification needs a tensor of logits, or an "
            "object with a tensor `logits`. Wrap the model so that it returns one of them"
        )
    return logits
