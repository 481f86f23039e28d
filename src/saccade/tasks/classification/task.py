"""Single-label classification with cross-entropy."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.spec import InputSpec
from ...data.targets import Counts
from ...layers.numerics import upcast
from ...layers.second_order import SecondOrder
from ...settings import ConfigError, LossConfig
from ..codec import Codec
from ..metric import Metrics
from ..presenter import Presenter
from ..reader import Reader
from ..registering import register_task
from ..task import Task
from .codec import ClassCodec, OneOfCodec
from .metrics import ClassificationMetrics
from .presenter import ClassificationPresenter, OneOfPresenter
from .reader import ClassReader


class OneOf(Task):
    """Base of tasks that predict one of the model's outputs."""

    codec: ClassVar[type[Codec]] = OneOfCodec
    presenter: ClassVar[type[Presenter]] = OneOfPresenter


@register_task("classify")
class Classify(OneOf):
    """Single-label classification with cross-entropy.

    Args:
        model: maps images to logits, or to an object with `logits`, as Hugging Face models do.
        label_smoothing: label smoothing.
        class_weights: weight of each class, num_classes.
    """

    running = ("top1",)
    reader: ClassVar[type[Reader]] = ClassReader
    codec: ClassVar[type[Codec]] = ClassCodec
    metrics: ClassVar[type[Metrics]] = ClassificationMetrics
    presenter: ClassVar[type[Presenter]] = ClassificationPresenter

    class_weights: Tensor | None

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> None:
        super().__init__(model)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} was given; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", class_weights, persistent=False)

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the class weights; label smoothing is part of mixing."""
        if loss is None:
            return {}
        return {"class_weights": weigh_classes(loss, counts.outputs, classes=len(spec.outputs))}

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Compute logits and loss.

        Args:
            batch: `image`, B, C, H, W, and `target`, class indices, B, or soft labels, B, num_classes.

        Returns:
            "output", the logits, and with targets "loss" and "classification".
        """
        self.refuse_draws(draws)
        answer, pair = self.run_model(batch)
        return self.score(answer, batch.get("target"), pair=pair)

    def run_model(self, batch: Batch) -> tuple[Any, Tensor | None]:
        """Run the model; return its output and, in training with late fusion, the logits of both classifiers."""
        late = find_late_fusion(self.model) if self.training and "target" in batch else None
        if late is None:
            return self.ask(batch), None
        with record_pair(late) as pair:
            answer = self.ask(batch)
        return answer, torch.stack(pair)

    def score(self, answer: Any, targets: Tensor | None, *, pair: Tensor | None = None) -> dict[str, Tensor]:
        """Compute the loss of a model's output.

        Args:
            answer: logits, B, K, or an object with `logits`.
            targets: targets; None: no loss.
            pair: logits of two classifiers with late fusion, 2, B, K, whose losses are added.
        """
        logits = read_logits(answer)
        if targets is None:
            return {"output": logits}
        loss = self._loss_fn(logits, targets, pair)
        result = {"loss": loss, "output": logits, "classification": loss.detach()}
        return result if pair is None else {**result, "pair": pair}

    def _loss_fn(self, logits: Tensor, targets: Tensor, pair: Tensor | None) -> Tensor:
        how: dict[str, Any] = {"label_smoothing": self.label_smoothing, "class_weights": self.class_weights}
        if pair is None:
            return classification_loss(logits, targets, **how)
        return classification_loss(pair[0], targets, **how) + classification_loss(pair[1], targets, **how)

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return the number of correct predictions, for the unmixed labels."""
        return ((result["output"].argmax(-1) == batch["truth"]).sum(),)

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Return the sum of class weights, the divisor of cross-entropy; None for soft labels."""
        if self.class_weights is None or batch["target"].is_floating_point():
            return None
        return self._weights(batch["target"]).sum()

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Rescale a chunk's loss by its sum of class weights."""
        if mean is None:
            return result
        targets = batch["target"]
        heavier = self._weights(targets).mean() / mean - 1
        own = self._loss_fn(result["output"], targets, result.get("pair"))
        return result | {"loss": result["loss"] + own * heavier}

    def _weights(self, targets: Tensor) -> Tensor:
        assert self.class_weights is not None
        with torch.no_grad():
            return self.class_weights[targets]


def classification_loss(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy of logits, B, K, with class indices, B, or soft labels, B, K."""
    if targets.is_floating_point() and targets.shape != logits.shape:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} were given as class probabilities for logits of shape "
            f"{tuple(logits.shape)}; give the same shape, or class indices as integers of shape ({logits.shape[0]},)"
        )
    logits = upcast(logits)
    if targets.is_floating_point():
        targets = targets.to(logits.dtype)
    return F.cross_entropy(logits, targets, weight=class_weights, label_smoothing=label_smoothing)


def read_logits(answer: Any) -> Tensor:
    """Return the logits of a model's output."""
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returned {type(answer).__name__}; a classification task needs a tensor of logits, or an "
            "object with a tensor `logits`. Wrap the model so that it returns one of them"
        )
    return logits


def weigh_classes(loss: LossConfig, counts: Tensor | None, *, classes: int) -> Tensor | None:
    """Return the class weights of the settings; None if all are equal."""
    if loss.class_weights == "none":
        return None
    if loss.class_weights == "balanced":
        if counts is None:
            raise ConfigError(
                "loss.class_weights = balanced needs the number of samples per class, which a stream does not provide"
            )
        weights = counts.sum() / counts.clamp(min=1)
    else:
        weights = torch.tensor(loss.class_weights, dtype=torch.float64)
        if len(weights) != classes:
            raise ConfigError(f"loss.class_weights has {len(weights)} numbers, the data has {classes} classes")
    return (weights / weights.mean()).float()


def find_late_fusion(model: nn.Module) -> SecondOrder | None:
    """Return a model's late-fusion head, whose two classifiers are trained separately, if it has one.

    With late="scores", the paper's form, scores are also added in training, as the head does by itself.
    """
    heads = (module for module in model.modules() if isinstance(module, SecondOrder))
    return next((head for head in heads if head.fusion == "late" and head.late == "logits" and head.has_pair), None)


@contextmanager
def record_pair(head: SecondOrder) -> Iterator[list[Tensor]]:
    """Record the logits of class token and patch tokens, B, K each, within a context."""
    recorded: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, _args, output: recorded.append(output))
        for layer in (head.class_fc, head.word_fc)
        if layer is not None
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
