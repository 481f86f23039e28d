"""Knowledge distillation from a teacher's logits."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.feed import Batch
from ...layers.numerics import upcast
from ...plugins.registry import register_plugin
from ..classification.task import Classify, read_logits
from .teacher import Norm, Teacher, WithTeacher, count_classes, require_other


@register_plugin("distill")
class Distillation(WithTeacher):
    """A classifier with the loss `(1 - weight) * cross-entropy + weight * distillation`.

    Models with a distillation head (DeiT's distilled models and others of timm with `set_distilled_training`) learn
    labels with the class head and the teacher with the other. The teacher is frozen and in evaluation mode; it moves to
    the task's device, but is not part of its parameters and state dict.

    Args:
        model: maps images to logits, to an object with `logits`, or to class and distillation logits.
        teacher: maps images to logits of the same classes.
        temperature: divisor of both models' logits; the loss is multiplied by its square.
        weight: weight of the teacher in the loss.
        hard: use the teacher's predicted class instead of its distribution.
        images_norm: mean and standard deviation of the images' normalisation, which is converted to the teacher's.
        teacher_norm: the teacher's normalisation; default: from its `pretrained_cfg`.
        size: height and width of the teacher's images; None: unchanged.
        classes: the teacher's class for each of the model's, if they differ.
        settings: options of `Classify` for the labels: label_smoothing, class_weights.
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
        """Compute the loss; in training with the teacher.

        Args:
            batch: `image`, B, C, H, W, and `target`, class indices, B, or soft labels, B, num_classes; without targets
                only the teacher is used.
            distill: whether to run the teacher; default: in training.

        Returns:
            "output", the logits (the mean of two heads), and, if any, "loss", "classification" and "distillation".
        """
        self.refuse_draws(draws)
        images, targets = batch["image"], batch.get("target")
        answer, pair = self.run_model(batch)
        output, for_labels, for_teacher = _heads(answer)
        asked = self.training if distill is None else distill
        # Without the teacher, the mean of both heads is compared, as in inference.
        result = self.score(for_labels if asked else output, targets, pair=pair) | {"output": output}
        if asked:
            learned = self.loss_fn(for_teacher, self.teacher.ask(images))
            loss = self.weight * learned
            if targets is not None:
                loss = (1 - self.weight) * result["loss"] + loss
                result |= {"for_labels": for_labels}
            result |= {"loss": loss, "distillation": learned.detach()}
        return result

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Rescale the label term of a chunk's loss by its class weights."""
        if mean is None or "for_labels" not in result:
            return super().reweigh(result, batch, mean)
        labels = {**result, "output": result["for_labels"], "loss": torch.zeros_like(result["loss"])}
        more = super().reweigh(labels, batch, mean)["loss"]
        return result | {"loss": result["loss"] + (1 - self.weight) * more}

    def loss_fn(self, logits: Tensor, taught: Tensor) -> Tensor:
        """Return the distillation loss of logits, B, K."""
        self.teacher.check_classes(taught.shape[1], logits.shape[1])
        if self.hard:
            return F.cross_entropy(upcast(logits), taught.argmax(1))
        return soft_loss(logits, taught, temperature=self.temperature)


def soft_loss(logits: Tensor, taught: Tensor, *, temperature: float) -> Tensor:
    """Return the mean KL divergence from the teacher's distribution, times the squared temperature."""
    own = F.log_softmax(upcast(logits) / temperature, dim=-1)
    other = F.log_softmax(upcast(taught).to(own.dtype) / temperature, dim=-1)
    return F.kl_div(own, other, reduction="batchmean", log_target=True) * temperature**2


def _heads(answer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return a model's logits for labels and for the teacher."""
    if isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, Tensor) for part in answer):
        return (answer[0] + answer[1]) / 2, answer[0], answer[1]
    logits = read_logits(answer)
    return logits, logits, logits
