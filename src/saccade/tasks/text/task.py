"""One class a text, or a pair of texts."""

from typing import Any

from ...config import ConfigError, DataConfig, LossConfig, ModelConfig, TrainConfig
from ...data.feed import Batch
from ...data.open import Data
from ...data.spec import InputSpec
from ...data.table import Table
from ...data.targets import Counts, Targets
from ..classification.task import Classify
from ..metric import MetricSpec
from ..registering import register_task
from .codec import TextCodec
from .data import TextSource, TextTargets
from .hosted import OnHuggingFace
from .metrics import TextMetrics, metric_specs
from .presenter import TextPresenter
from .reading import TextOptions, open_texts
from .tokens import INPUTS

METRICS = ("accuracy", "matthews")


@register_task("text")
class ClassifyText(OnHuggingFace, Classify):
    """A model of Hugging Face that sorts texts under cross-entropy.

    Args:
        model: takes `input_ids`, `attention_mask` and perhaps `token_type_ids`, and returns an object with `logits`.
        label_smoothing: share of a target spread evenly over all classes.
        class_weights: how much each class counts, num_classes.
    """

    primary = "accuracy"
    running = ("accuracy",)
    Options = TextOptions
    asked_by, read_by = (), ("text", "pair", "label", "dev")
    codec = TextCodec
    presenter = TextPresenter
    reads = "text"
    host_kind = "SEQUENCE_CLASSIFICATION"

    # From data to a batch

    @classmethod
    def claims(cls, table: Table) -> bool:
        """Leave lists to the tasks on images: texts are asked for with --task text."""
        return False

    @classmethod
    def read_table(cls, table: Table, options: Any) -> Targets:
        """Refuse lists of images."""
        raise table.refuse("what the task text reads, which is no list of images; `saccade train` checks texts itself")

    @classmethod
    def open(cls, config: DataConfig, options: TextOptions) -> Data:
        """Open texts and their classes."""
        return open_texts(config, options)

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Leave out what is made for images, and compiling, which would be done anew for every length of texts."""
        if config.augment.repeats != 1:
            raise ConfigError("augment.repeats was given; texts are not augmented: leave it out")
        return cls.adapt_host(config, compile=bool(config.engine.compile)), []

    @classmethod
    def complete_spec(cls, spec: InputSpec, data: Data, options: Any, model: ModelConfig) -> None:
        """Keep what the set is judged by, which columns its texts were in, the model's configuration and tokenizer."""
        assert isinstance(data.train, TextSource)
        targets = data.train.targets
        assert isinstance(targets, TextTargets)
        columns, most = list(targets.how["columns"]), targets.how["max_length"]
        spec.extra |= {"metric": targets.metric, "columns": columns}
        limit = cls.describe_model(spec, model, targets.how, pair=len(columns) == 2)
        if most and most > limit:
            raise ConfigError(f"max_length = {most} was given; {model.name} takes texts of at most {limit} tokens")

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse a spec that no text can be read by."""
        if spec.extra.get("metric") not in METRICS:
            raise ValueError(f"its spec is judged by none of {', '.join(METRICS)}")
        columns = spec.extra.get("columns")
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ValueError("its spec does not name the columns of its texts")
        super().check_spec(spec)

    # In training

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the classes' weights and the smoothing, which is done in the loss: texts are not mixed."""
        smoothing = 0.0 if loss is None else loss.smoothing
        return super().arguments(spec, options, loss, counts) | {"label_smoothing": smoothing}

    def ask(self, batch: Batch) -> Any:
        """Return what the model answers to texts."""
        return self.model(**{name: batch[name] for name in INPUTS if name in batch})

    # Of answers

    @classmethod
    def primary_of(cls, spec: InputSpec) -> str:
        """Return what the set is judged by."""
        return str(spec.extra.get("metric", cls.primary))

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return loss, accuracy and Matthews' correlation."""
        return metric_specs(len(spec.outputs))

    def metrics(self) -> TextMetrics:  # type: ignore[override]
        """Return what collects logits and classes."""
        assert self.spec is not None
        return TextMetrics(metric_specs(len(self.spec.outputs)))
