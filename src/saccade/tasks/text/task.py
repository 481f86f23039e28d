"""One class a text, or a pair of texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...config import AugmentConfig, ConfigError, DataConfig, LossConfig, ModelConfig, TrainConfig
from ...data.feed import Batch, Expand, Feed
from ...data.framing import Encoder
from ...data.open import Data
from ...data.source import Source, Stream
from ...data.spec import InputSpec
from ...data.table import Table
from ...data.targets import Counts, Targets
from ...data.validation import Validation
from ..classification.task import Classify
from ..metric import MetricSpec
from ..registering import register_task
from .data import TextSource, TextTargets
from .feed import KeepTexts, LengthOrder, TokenFeed, TokenValidation
from .hosted import OnHuggingFace
from .metrics import TextMetrics, metric_specs
from .presenter import TextPresenter
from .reading import TextOptions, open_texts
from .tokens import INPUTS, Reading, TextEncoder

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

    @classmethod
    def encoder(cls, spec: InputSpec, augment: AugmentConfig | None = None) -> Encoder:
        """Return what makes tokens of texts."""
        return TextEncoder(Reading.of(spec))

    @classmethod
    def expander(cls, spec: InputSpec, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return what leaves tokens as they are."""
        return KeepTexts()

    @classmethod
    def own_batches(
        cls,
        train: Source | Stream,
        val: Source,
        config: TrainConfig,
        spec: InputSpec,
        *,
        device: torch.device,
        rank: int,
        world: int,
    ) -> tuple[Feed, Validation]:
        """Turn all texts into tokens, once, and return batches of like length."""
        assert isinstance(train, TextSource)
        assert isinstance(val, TextSource)
        reading = Reading.of(spec)
        tokens, held = (
            reading.encode(part.texts, names=[part.name(index) for index in range(len(part))]) for part in (train, val)
        )
        widths = torch.tensor([reading.width(length) for length in tokens.lengths.tolist()])
        batch_size = config.optim.batch_size
        ranked: dict[str, Any] = {"rank": rank, "world": world}
        order = LengthOrder(length=len(train), batch_size=batch_size, seed=config.seed, widths=widths, **ranked)
        targets = torch.from_numpy(train.targets.rows)
        shared: dict[str, Any] = {"reading": reading, "device": device}
        feed = TokenFeed(tokens, targets, order=order, expand=KeepTexts(), **shared)
        longest = int(max(tokens.lengths.max(), held.lengths.max()))
        mean = float(tokens.lengths.double().mean())
        feed.notes = [f"{len(train):,} texts of {mean:.1f} tokens on average, {longest} at most"]
        if tokens.cut or held.cut:
            feed.notes.append(f"cut to {reading.limit} tokens: {tokens.cut} training and {held.cut} validation texts")
        largest = max(batch_size, 256 if device.type == "cuda" else 32)
        return feed, TokenValidation(val, held, batch_size=largest, **shared, **ranked)

    @classmethod
    def graph_inputs(cls, spec: InputSpec) -> tuple[str, ...]:
        """Return tokens, which of them count and, where the model is told, which text of a pair they are of."""
        return INPUTS if Reading.of(spec).kinds else INPUTS[:2]

    @classmethod
    def pack(cls, batch: Batch, spec: InputSpec) -> Tensor:
        """Take the rows of tokens out of a batch, B, inputs, N."""
        return torch.stack([batch.pop(name) for name in cls.graph_inputs(spec)], dim=1)

    @classmethod
    def unpack(cls, packed: Tensor, spec: InputSpec) -> Batch:
        """Return rows of tokens by name."""
        return dict(zip(cls.graph_inputs(spec), packed.unbind(1), strict=True))

    @classmethod
    def stack(cls, samples: Sequence[Tensor], spec: InputSpec) -> Tensor:
        """Return texts, inputs, N each, in rows of one width."""
        reading = Reading.of(spec)
        width = reading.width(max(sample.shape[1] for sample in samples))
        packed = torch.zeros(len(samples), samples[0].shape[0], width, dtype=torch.int64)
        packed[:, 0] = reading.pad
        for row, sample in zip(packed, samples, strict=True):
            row[:, : sample.shape[1]] = sample
        return packed

    @classmethod
    def pack_text(cls, texts: tuple[str, ...], spec: InputSpec, *, name: str) -> Tensor:
        """Return one or two texts as tokens, inputs, N; refuses what the model cannot be asked by TextError."""
        reading = Reading.of(spec)
        tokens = reading.encode([texts], names=[name])
        rows = tokens.rows(torch.tensor([0]), len(tokens.ids), pad=reading.pad, kinds=reading.kinds)
        return cls.pack(rows, spec)[0]

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
