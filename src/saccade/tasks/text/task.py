"""One class a text, or a pair of texts."""

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
    """A model of Hugging Face that sorts texts under cross-entropy.

    Args:
        model: takes `input_ids`, `attention_mask` and perhaps `token_type_ids`, and returns an object with `logits`.
        label_smoothing: share of a target spread evenly over all classes.
        class_weights: how much each class counts, num_classes.
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
        """Return the classes' weights and the smoothing, which is done in the loss: texts are not mixed."""
        smoothing = 0.0 if loss is None else loss.smoothing
        return super().arguments(spec, options, loss, counts) | {"label_smoothing": smoothing}
