"""Questions about images, answered with one of the answers that training knows."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import AugmentConfig, ConfigError, DataConfig, LossConfig, ModelConfig, TrainConfig
from ...data.augment import Normalize
from ...data.feed import Batch, Expand
from ...data.framing import Encoder
from ...data.open import Data
from ...data.source import Sample
from ...data.spec import InputSpec
from ...layers.numerics import upcast
from ..answer import Answer
from ..classification.task import Classify, read_logits
from ..metric import PLACE, Metrics, MetricSpec
from ..task import Task, register_task
from ..text.hosts import build_host, describe_host, describe_tokenizer, read_config
from ..text.tokens import INPUTS, Reading
from .data import AnswerTargets, VqaOptions, open_questions
from .encoding import NormalizeImages, QuestionEncoder, embed_whole, input_names, pack, unpack

KIND = "VISUAL_QUESTION_ANSWERING"


@register_task("vqa")
class AnswerQuestions(Task):
    """A model of Hugging Face that reads a question and an image, such as ViLT, under binary cross-entropy.

    Args:
        model: takes tokens and `pixel_values`, and returns an object with `logits`, B, answers.
    """

    primary = "score"
    running = ("score",)
    output = "logits"
    outputs_key = "answers"
    Options = VqaOptions
    recipe = "text"
    reads = "question"
    own_models = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    # From data to a batch

    @classmethod
    def open(cls, config: DataConfig, options: VqaOptions) -> Data:
        """Open questions about images."""
        return open_questions(config, options)

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Leave images whole, and steps uncompiled: questions are read with their images, file by file."""
        if config.model.checkpoint is not None:
            raise ConfigError("model.checkpoint was given; the model begins with the weights in its own folder")
        if config.loss.class_weights != "none" or config.loss.smoothing:
            raise ConfigError("loss.class_weights or loss.smoothing was given; answers are weighed by their own shares")
        config = replace(
            config,
            model=replace(config.model, options={}, drop_path=None, pretrained=True),
            augment=AugmentConfig(crop="none", flip=0.0),
            engine=replace(config.engine, compile=False, graphs=False, channels_last=False),
        )
        return config, []

    @classmethod
    def find_model(cls, name: str) -> str:
        """Return a folder or a name on Hugging Face as it is."""
        return name

    @classmethod
    def complete_model(cls, spec: InputSpec, config: ModelConfig, data: Data) -> None:
        """Keep the model's configuration and its tokenizer."""
        targets = data.val.targets
        assert isinstance(targets, AnswerTargets)
        how: dict[str, Any] = dict(targets.how)
        host = describe_host(config.name, spec.outputs, kind=KIND)
        tokenizer = describe_tokenizer(config.name, host)
        most = min(how["max_length"] or tokenizer["limit"], tokenizer["limit"])
        kinds = host["config"].get("type_vocab_size", 0) or 0
        told = {"kinds": kinds > 1, "truncate": how["truncate"], "pair": False}
        reading = Reading(**(tokenizer | {"limit": most}), **told)
        spec.extra |= {"host": host, "tokens": asdict(reading), "scratch": how["scratch"]}
        spec.mean, spec.std = [0.5] * 3, [0.5] * 3  # as ViLT's own image processor has it

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Build the model; in training, with the weights that settings name."""
        begins = config.pretrained and not spec.extra.get("scratch")
        return build_host(spec, kind=KIND, weights=config.name if begins else None)

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse a spec that no question can be read by."""
        Reading.of(spec)
        read_config(spec, kind=KIND)

    @classmethod
    def encoder(cls, spec: InputSpec, augment: AugmentConfig | None = None) -> Encoder:  # noqa: ARG003
        """Return what makes tensors of images and questions."""
        return QuestionEncoder(spec.framing, Reading.of(spec))

    @classmethod
    def expander(cls, spec: InputSpec, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:  # noqa: ARG003
        """Return what normalises images."""
        return NormalizeImages(Normalize(spec.mean, spec.std, device=device))

    @classmethod
    def graph_inputs(cls, spec: InputSpec) -> tuple[str, ...]:
        """Return tokens, which of them count, perhaps their kinds, and the image."""
        return input_names(Reading.of(spec))

    @classmethod
    def pack(cls, batch: Batch, spec: InputSpec) -> Tensor:
        """Take questions and images out of a batch, B, 1, all of them."""
        return pack(batch, spec)

    @classmethod
    def unpack(cls, packed: Tensor, spec: InputSpec) -> Batch:
        """Return questions and images by name."""
        return unpack(packed, spec)

    @classmethod
    def pack_sample(cls, sample: Sample, spec: InputSpec) -> Tensor:
        """Return an image and a question as one tensor, 1, all of them; refuses what cannot be asked by TextError."""
        encode = cls.encoder(spec)
        return cls.pack(encode.collate([encode(sample)]), spec)[0]

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

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:  # noqa: ARG002
        """Answer and compare: binary cross-entropy, summed over answers, as ViLT is trained."""
        if draws:
            raise TypeError(f"{type(self).__name__} was given {', '.join(draws)}, which it has no use for")
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

    # One answer is given: what programs and tables read is as of classes.

    @classmethod
    def read_output(cls, output: np.ndarray, spec: InputSpec) -> np.ndarray:
        """Return probabilities of answers."""
        return Classify.read_output(output, spec)

    @classmethod
    def describe(cls, row: np.ndarray, spec: InputSpec, *, top: int = 5) -> Answer:
        """Return the likeliest answers."""
        return Classify.describe(row, spec, top=top)

    @classmethod
    def table_head(cls, spec: InputSpec, *, top: int = 5) -> list[str]:
        """Return answer and confidence, likeliest first."""
        return Classify.table_head(spec, top=top)

    @classmethod
    def table_row(cls, answer: Answer, spec: InputSpec, *, top: int = 5) -> list[str | float]:
        """Return the likeliest answers and their probabilities."""
        return Classify.table_row(answer, spec, top=top)


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
