"""Text classification."""

from typing import Any

from ...data.spec import InputSpec
from ...data.targets import Counts
from ...settings import LossConfig
from ..classification.task import Classify
from ..registering import register_task
from .codec import TextCodec
from .hosts import TextHosts
from .metrics import TextMetrics
from .presenter import TextPresenter
from .reader import TextReader
from .reading import TextOptions
from .rules import RULES


@register_task("text")
class ClassifyText(Classify):
    """Text classification with a Hugging Face model and cross-entropy.

    Args:
        model: takes `input_ids`, `attention_mask` and optionally `token_type_ids`; returns an object with `logits`.
        label_smoothing: label smoothing.
        class_weights: weight of each class, num_classes.
    """

    reader, codec, metrics = TextReader, TextCodec, TextMetrics
    presenter, hosts = TextPresenter, TextHosts
    running = ("accuracy",)
    Options = TextOptions
    asked_by = ()
    rules = RULES
    recipe = "text"

    # In training

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return class weights and label smoothing, which is part of the loss since texts are not mixed."""
        smoothing = 0.0 if loss is None else loss.smoothing
        return super().arguments(spec, options, loss, counts) | {"label_smoothing": smoothing}
