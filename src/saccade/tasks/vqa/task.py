"""Visual question answering as classification over training answers."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.feed import Batch
from ...layers.numerics import upcast
from ..classification.task import OneOf, read_logits
from ..registering import register_task
from .codec import QuestionCodec
from .data import VqaOptions
from .hosts import QuestionHosts
from .metrics import QuestionMetrics, answer_scores
from .presenter import QuestionPresenter
from .reader import QuestionReader
from .rules import RULES


@register_task("vqa")
class AnswerQuestions(OneOf):
    """Visual question answering with a Hugging Face model, such as ViLT, and binary cross-entropy.

    Args:
        model: takes tokens and `pixel_values`; returns an object with `logits`, B, answers.
    """

    reader, codec, metrics = QuestionReader, QuestionCodec, QuestionMetrics
    presenter, hosts = QuestionPresenter, QuestionHosts
    running = ("score",)
    Options = VqaOptions
    asked_by = ()
    rules = RULES
    recipe = "vqa"

    # In training

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Compute the binary cross-entropy, summed over answers, as for ViLT."""
        self.refuse_draws(draws)
        logits = read_logits(self.ask(batch))
        if "target" not in batch:
            return {"output": logits}
        loss = F.binary_cross_entropy_with_logits(upcast(logits), batch["target"].to(upcast(logits).dtype))
        loss = loss * logits.shape[1]
        return {"loss": loss, "output": logits}

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return the summed scores of the predicted answers."""
        return (answer_scores(result["output"], batch["truth"]).sum(),)
