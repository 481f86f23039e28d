"""The base class of tasks: loss, random draws and metrics of a model, and the task's roles.

Other packages use the roles and do not depend on tasks: `Reader`, `Codec`, `Presenter`, `Hosts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.feed import Batch
from ..data.framing import Encoder
from ..data.spec import InputSpec
from ..data.targets import Counts
from ..settings import LossConfig, TrainConfig
from ..settings.decisions import Rule, decide
from ..settings.facts import Facts
from .codec import Codec
from .hosts import Hosts
from .metric import PLACE, Metrics
from .moved import refuse_earlier
from .presenter import Presenter
from .reader import Reader
from .rules import adapted_by, left_out


@dataclass(frozen=True)
class NoOptions:
    """Options of a task without any."""


class Task(nn.Module):
    """A model with its loss, metrics and roles.

    Calling it returns a dict with "output" (the model's output), "loss" (a scalar, if there are targets) and the
    detached terms of the loss, for the log.

    Attributes:
        model: the trained model.
        name: registered name of the task.
        primary: name of the primary metric.
        running: names of the running metrics of `follow`.
        asked_by: options of inference that trained models store; None: not declared.
        Options: dataclass of options, given as `--task NAME:option=value`.
        reader: its `Reader`: opens datasets, reads targets, completes the spec.
        codec: its `Codec`: encodes batches, decodes outputs, inputs of exported graphs.
        metrics: its `Metrics`.
        presenter: its `Presenter`: texts, tables, drawings and report sections.
        hosts: its `Hosts`: models other than timm's, and heads.
        rules: rules on settings, see `saccade.tasks.rules`; None: disable what the codec does not support.
        recipe, finetuning: default recipes from scratch and from trained weights; None for the latter: the former.
        largest: side up to which whole images keep their size by default; None: the model's image size.
    """

    name: ClassVar[str] = ""
    running: ClassVar[tuple[str, ...]] = ()
    Options: ClassVar[type] = NoOptions
    asked_by: ClassVar[tuple[str, ...] | None] = None
    reader: ClassVar[type[Reader]] = Reader
    codec: ClassVar[type[Codec]] = Codec
    metrics: ClassVar[type[Metrics]] = Metrics
    presenter: ClassVar[type[Presenter]] = Presenter
    rules: ClassVar[tuple[Rule, ...] | None] = None
    hosts: ClassVar[type[Hosts]] = Hosts
    recipe: ClassVar[str] = "small"
    finetuning: ClassVar[str | None] = None
    largest: ClassVar[int | None] = None

    model: nn.Module
    primary: str
    options: Any
    spec: InputSpec | None = None

    def __init_subclass__(cls, **settings: Any) -> None:
        """Refuse tasks written for earlier versions."""
        super().__init_subclass__(**settings)
        refuse_earlier(cls)

    def __init__(self, model: nn.Module | None = None, *, options: Any = None) -> None:
        super().__init__()
        if model is not None:
            self.model = model
        self.options = options or self.Options()
        self.primary = self.metrics.primary

    @classmethod
    def reader_for(cls, options: Any = None) -> Reader:
        """Return the task's reader with the given options."""
        return cls.reader(cls.name, options or cls.Options())

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Raise ValueError for an invalid spec, which may be untrusted."""
        cls.reader_for().check_spec(spec)
        cls.hosts.check_spec(spec)

    @classmethod
    def task_rules(cls) -> tuple[Rule, ...]:
        """Return the task's rules on settings, in order; do not override."""
        if cls.adapt.__func__ is not Task.adapt.__func__:  # type: ignore[attr-defined]
            return (adapted_by(cls.name, cls.adapt),)
        mixes = cls.codec.mixed_targets is not Codec.mixed_targets
        default = () if mixes else (left_out(("mixup", "cutmix"), f"{cls.name} does not mix targets"),)
        return default if cls.rules is None else cls.rules

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Apply the task's rules; return settings and remarks; do not override."""
        remarks: list[str] = []
        return decide(config, Facts(), cls.task_rules(), remarks=remarks), remarks

    def read_along(self, encode: Encoder) -> Encoder:
        """Wrap the encoder of training samples to add what the task needs."""
        return encode

    # In training

    @classmethod
    def build(
        cls,
        model: nn.Module,
        spec: InputSpec,
        *,
        options: Any = None,
        loss: LossConfig | None = None,
        counts: Tensor | None = None,
        total: int | None = None,
    ) -> "Task":
        """Build the task of a model from settings.

        Args:
            model: a model with the spec's outputs.
            options: options of the task; default: their defaults.
            counts: numbers of training samples for each output, if known.
            total: number of training samples, if known.
        """
        task = cls(model, **cls.arguments(spec, options, loss, Counts(counts, total)))
        task.spec, task.primary = spec, cls.metrics.primary_of(spec)
        return task

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the constructor's arguments besides the model; arguments as for `build`."""
        return {"options": options} if cls.Options is not NoOptions else {}

    def forward(
        self,
        batch: Batch | Tensor,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        **draws: Any,
    ) -> dict[str, Tensor]:
        """Run the model and compute the loss.

        Args:
            batch: tensors by name: `image`, `target`, ...; or images, B, C, H, W.
            targets: targets, if `batch` is images; None: no loss.
            generator: random generator of the task, on the images' device.
            draws: result of `draw`, instead of a generator.
        """
        if isinstance(batch, Tensor):
            batch = {"image": batch} if targets is None else {"image": batch, "target": targets}
        return self.loss(batch, generator=generator, **draws)

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Return "output" and, with targets, "loss" and its terms; arguments as for `forward`."""
        raise NotImplementedError

    def refuse_draws(self, draws: Mapping[str, Any]) -> None:
        """Refuse draws of another task."""
        if draws:
            raise TypeError(f"{type(self).__name__} was given {', '.join(draws)}, which it does not use")

    def learns_from(self) -> dict[str, str]:
        """Return fingerprints of what the task learns from besides the samples, by description."""
        return {}

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw the random tensors of a step, for `task(batch, **draws)`; torch.compile takes no generator."""
        return {}

    def set_epoch(self, epoch: float, total_epochs: int) -> None:
        """Set the training progress, for losses that depend on it."""

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return the running metrics of a training batch, summed over samples."""
        return ()

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Return the sum of sample weights that the loss is divided by; None if samples are not weighted."""
        return None

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Rescale a chunk's loss such that the mean over chunks, by samples, is the batch's loss.

        `mean` is the mean sample weight in the batch, over all processes; None: no change.
        """
        return result

    # Inference

    def ask(self, batch: Batch) -> Any:
        """Run the model on a batch's inputs."""
        return self.codec.ask(self.model, batch)

    def answer(self, batch: Batch) -> dict[str, Tensor]:
        """Return the answers for a batch, including "output", in float32."""
        inputs = {name: value for name, value in batch.items() if name not in (*self.codec.target_names, PLACE)}
        return self.read(self(inputs)["output"].float(), batch)

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Decode a raw output, B, ..., for metrics; also that of an exported model."""
        return {"output": output}

    def for_pages(self, answers: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return what pages show of answers beside the metrics' predictions, B, ... by name."""
        return {}

    # For people
