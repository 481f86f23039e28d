"""Distillation: a model learns from a teacher's logits besides the labels."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.feed import Batch
from ...layers.numerics import upcast
from ...plugins.registry import register_plugin
from ..classification.task import Classify, read_logits
from .teacher import Norm, Taught, Teacher, count_classes, require_other


@register_plugin("distill")
class Distillation(Taught):
    """A classifier under cross-entropy to labels and to a teacher, `(1 - weight)` of the one, `weight` of the other.

    A host with a head for distillation (DeiT's distilled models and others of timm with `set_distilled_training`)
    learns the labels with its class head and the teacher with the other. The teacher is frozen and in evaluation mode;
    it moves with the task, and is neither among its parameters nor in its state dict.

    Args:
        model: maps images to logits, to an object that holds `logits`, or to class and distillation logits.
        teacher: maps images to logits of the same classes.
        temperature: both sides' logits are divided by it, and the loss multiplied by its square.
        weight: share of the teacher in the loss.
        hard: learn the teacher's best class instead of its distribution.
        images_norm: mean and standard deviation of the images' normalisation, to turn it into the teacher's.
        teacher_norm: the teacher's; by default as its `pretrained_cfg` tells.
        size: height and width of the teacher's images; None leaves them.
        classes: the teacher's class for each of the model's, if they are not the same.
        settings: of `Classify`, for the labels: label_smoothing, class_weights.
    """

    option_sources = (Classify,)
    option_hidden = ("class_weights",)  # settings of the loss

    teacher: Teacher

    def __init__(
        self,
        model: nn.Module,
        teacher: nn.Module,
        *,
        temperature: float = 1.0,
        weight: float = 0.5,
        hard: bool = False,
        images_norm: Norm | None = None,
        teacher_norm: Norm | None = None,
        size: int | tuple[int, int] | None = None,
        classes: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, **settings)
        if temperature <= 0:
            raise ValueError(f"temperature={temperature} was given; it must be positive")
        if not 0 <= weight <= 1:
            raise ValueError(f"weight={weight} was given; it is the teacher's share of the loss, from 0 to 1")
        require_other(teacher, model)
        self.temperature, self.weight, self.hard = temperature, weight, hard
        self.teacher = Teacher(teacher, images_norm=images_norm, teacher_norm=teacher_norm, size=size, classes=classes)
        self.teacher.join(model, count_classes(model))
        two_heads: Any = getattr(model, "set_distilled_training", None)
        if two_heads is not None:
            two_heads(True)

    def loss(
        self,
        batch: Batch,
        *,
        generator: torch.Generator | None = None,
        distill: bool | None = None,
        **draws: Any,
    ) -> dict[str, Tensor]:
        """Run the model; in training, run the teacher too and compare.

        Args:
            batch: `image`, B, C, H, W, and `target`, class indices, B, or shares of classes, B, num_classes; without
                targets the model learns from the teacher alone.
            distill: whether to ask the teacher, if not just in training.

        Returns:
            "output", the logits (of two heads, their mean), and what there is of "loss", "classification" and
            "distillation".
        """
        self.refuse_draws(draws)
        images, targets = batch["image"], batch.get("target")
        answer, pair = self.hear(batch)
        output, for_labels, for_teacher = _heads(answer)
        asked = self.training if distill is None else distill
        # Where the teacher is not asked, what will be used is compared: both heads together.
        result = self.score(for_labels if asked else output, targets, pair=pair) | {"output": output}
        if asked:
            learned = self.compare(for_teacher, self.teacher.ask(images))
            loss = self.weight * learned
            if targets is not None:
                loss = (1 - self.weight) * result["loss"] + loss
                result |= {"for_labels": for_labels}
            result |= {"loss": loss, "distillation": learned.detach()}
        return result

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Return a part's result, of which the labels' share of the loss counts by its classes."""
        if mean is None or "for_labels" not in result:
            return super().reweigh(result, batch, mean)
        labels = {**result, "output": result["for_labels"], "loss": torch.zeros_like(result["loss"])}
        more = super().reweigh(labels, batch, mean)["loss"]
        return result | {"loss": result["loss"] + (1 - self.weight) * more}

    def compare(self, logits: Tensor, taught: Tensor) -> Tensor:
        """Return the loss of logits, B, K, to the teacher's."""
        self.teacher.check_classes(taught.shape[1], logits.shape[1])
        if self.hard:
            return F.cross_entropy(upcast(logits), taught.argmax(1))
        return soft_loss(logits, taught, temperature=self.temperature)


def soft_loss(logits: Tensor, taught: Tensor, *, temperature: float) -> Tensor:
    """Return the mean divergence from the teacher's distribution over images, times the squared temperature."""
    own = F.log_softmax(upcast(logits) / temperature, dim=-1)
    other = F.log_softmax(upcast(taught).to(own.dtype) / temperature, dim=-1)
    return F.kl_div(own, other, reduction="batchmean", log_target=True) * temperature**2


def _heads(answer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return a model's logits, those for the labels and those for the teacher."""
    if isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, Tensor) for part in answer):
        return (answer[0] + answer[1]) / 2, answer[0], answer[1]
    logits = read_logits(answer)
    return logits, logits, logits
