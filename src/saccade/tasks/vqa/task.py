"""Questions about images, answered with one of the answers that training knows."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import ConfigError, TrainConfig
from ...data.feed import Batch
from ...data.spec import InputSpec
from ...layers.numerics import upcast
from ..classification.task import OneOf, read_logits
from ..metric import PLACE, Metrics, MetricSpec
from ..registering import register_task
from ..text.hosts import adapt_host
from ..text.tokens import INPUTS
from .codec import QuestionCodec
from .data import VqaOptions
from .encoding import embed_whole
from .hosts import QuestionHosts
from .presenter import QuestionPresenter
from .reader import QuestionReader


@register_task("vqa")
class AnswerQuestions(OneOf):
    """A model of Hugging Face that reads a question and an image, such as ViLT, under binary cross-entropy.

    Args:
        model: takes tokens and `pixel_values`, and returns an object with `logits`, B, answers.
    """

    primary = "score"
    running = ("score",)
    reader, hosts = QuestionReader, QuestionHosts
    codec = QuestionCodec
    presenter = QuestionPresenter
    Options = VqaOptions
    asked_by = ()
    recipe = "text"

    # From data to a batch

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Leave images whole, and steps uncompiled: questions are read with their images, file by file."""
        if config.loss.class_weights != "none" or config.loss.smoothing:
            raise ConfigError("loss.class_weights or loss.smoothing was given; answers are weighed by their own shares")
        return adapt_host(config, compile=False, graphs=False), []

    # In training

    def ask(self, batch: Batch) -> Any:
        """Return what the model answers."""
        given = {name: batch[name] for name in INPUTS if name in batch}
        base: Any = getattr(self.model, "base_model", self.model)
        whole = embed_whole(base.embeddings, batch["image"])
        if whole is None:
            return self.model(**given, pixel_values=batch["image"])
        everywhere = torch.ones(whole.shape[:2], dtype=torch.long, device=whole.device)
        return self.model(**given, image_embeds=whole, pixel_mask=everywhere)

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Answer and compare: binary cross-entropy, summed over answers, as ViLT is trained."""
        self.refuse_draws(draws)
        logits = read_logits(self.ask(batch))
        if "target" not in batch:
            return {"output": logits}
        loss = F.binary_cross_entropy_with_logits(upcast(logits), batch["target"].to(upcast(logits).dtype))
        loss = loss * logits.shape[1]
        return {"loss": loss, "output": logits}

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return what the answers given are worth."""
        return (worth(result["output"], batch["truth"]).sum(),)

    # Of answers

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return loss and score."""
        del spec
        return METRICS

    def metrics(self) -> Metrics:
        """Return what collects logits and shares."""
        return QuestionMetrics(METRICS)


METRICS = (
    MetricSpec("loss", "loss", larger_is_better=False),
    MetricSpec("score", "worth of the answers given", share=True),
)


class QuestionMetrics(Metrics):
    """Collects what answers are worth."""

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return loss and worth of each sample, B, and the answer given."""
        logits, shares = answers["output"], batch["target"].float()
        losses = F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(1)
        return {"loss": losses, "score": worth(logits, shares), "answer": logits.argmax(1)}

    def scores(self) -> dict[str, Tensor]:
        """Return loss and worth of each sample."""
        return {name: self.columns[name] for name in ("loss", "score")}

    def predictions(self) -> dict[str, Tensor]:
        """Return the answers given."""
        return {name: self.columns[name] for name in (PLACE, "answer", "score", "loss")}


def worth(logits: Tensor, shares: Tensor) -> Tensor:
    """Return how right the likeliest answers are, B."""
    return shares.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
