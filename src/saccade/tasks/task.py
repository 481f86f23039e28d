"""What a model is trained for: its loss, draws and metrics, and the roles that read, encode, show and build for it.

Everything else knows no task, and asks the role it needs: `Reader`, `Codec`, `Presenter`, `Hosts`.
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
    """A task without options of its own."""


class Task(nn.Module):
    """A model together with what it is trained for.

    Calling it returns a dict with "output" (what the model answered), "loss" (a scalar to call `backward` on, if there
    is anything to compare with) and the loss's named parts, without gradient, for the log.

    Attributes:
        model: what is trained.
        name: of the task, by which it was registered.
        primary: name of the metric that the run is judged by.
        running: names of what `follow` counts while training.
        asked_by: options by which a trained model is asked, of a task that tells; None leaves it open.
        Options: its options, a dataclass; given as `--task NAME:option=value`.
        reader: its `Reader`: whose data a table is, targets, what the spec keeps of them.
        codec: its `Codec`: samples as batches, raw answers as what they say, what exported graphs need.
        metrics: its `Metrics`: what is measured of answers.
        presenter: its `Presenter`: answers in words, tables, records and drawings, and sections of reports.
        hosts: its `Hosts`: models that are none of timm's, and heads.
        rules: by which it changes settings, see `saccade.tasks.rules`; None leaves out what its codec does not know.
        recipe, finetuning: what it is trained by if no recipe is named, and from trained weights; None: as from random.
        largest: side up to which images are trained at their own size if none is asked for; None: at the model's.
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
        """Refuse a task that is written for an earlier version."""
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
        """Return what reads the samples of the task, by its options."""
        return cls.reader(cls.name, options or cls.Options())

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse, by ValueError, a spec that no model or answer is read by: that of a file may say anything."""
        cls.reader_for().check_spec(spec)
        cls.hosts.check_spec(spec)

    @classmethod
    def task_rules(cls) -> tuple[Rule, ...]:
        """Return the rules by which the task changes settings, in order; not to be overridden."""
        if cls.adapt.__func__ is not Task.adapt.__func__:  # type: ignore[attr-defined]
            return (adapted_by(cls.name, cls.adapt),)
        mixes = cls.codec.mixed_targets is not Codec.mixed_targets
        default = () if mixes else (left_out(("mixup", "cutmix"), f"{cls.name} mixes no targets"),)
        return default if cls.rules is None else cls.rules

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Return settings as the task's rules change them, and remarks on what was left out; not to be overridden."""
        remarks: list[str] = []
        return decide(config, Facts(), cls.task_rules(), remarks=remarks), remarks

    def read_along(self, encode: Encoder) -> Encoder:
        """Return what makes tensors of training samples, with what the task needs to know of each besides."""
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
        """Return the task around a model, by settings.

        Args:
            model: answers with a number for each of the spec's outputs.
            options: of the task; the defaults if not given.
            counts: training samples that speak of each output, where they are known.
            total: training samples, where they are known.
        """
        task = cls(model, **cls.arguments(spec, options, loss, Counts(counts, total)))
        task.spec, task.primary = spec, cls.metrics.primary_of(spec)
        return task

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return what the constructor is given besides the model; arguments as for `build`."""
        return {"options": options} if cls.Options is not NoOptions else {}

    def forward(
        self,
        batch: Batch | Tensor,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        **draws: Any,
    ) -> dict[str, Tensor]:
        """Run the model and compare.

        Args:
            batch: by name: `image`, `target`, ...; or images alone, B, C, H, W.
            targets: with images alone, what the answer is compared with; None to only answer.
            generator: source of the task's own randomness, on the device of the images.
            draws: what `draw` returned, instead of a generator.
        """
        if isinstance(batch, Tensor):
            batch = {"image": batch} if targets is None else {"image": batch, "target": targets}
        return self.loss(batch, generator=generator, **draws)

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Return "output" and, for a batch with targets, "loss" and its parts; arguments as for calling the task."""
        raise NotImplementedError

    def refuse_draws(self, draws: Mapping[str, Any]) -> None:
        """Refuse draws that were made for another task."""
        if draws:
            raise TypeError(f"{type(self).__name__} was given {', '.join(draws)}, which it has no use for")

    def learns_from(self) -> dict[str, str]:
        """Return what tells apart whatever the task learns from beside the samples, by what to call it."""
        return {}

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw what one step needs, to be passed by name: `task(batch, **draws)`; torch.compile takes no generator."""
        return {}

    def set_epoch(self, epoch: float, total_epochs: int) -> None:
        """Tell the task how far training is; for those whose loss changes with it."""

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return sums over a training batch's samples, one for each name in `running`."""
        return ()

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Return the sum of the samples' weights that the loss is divided by; None where every sample counts as one."""
        return None

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Return a part's result, its loss such that the mean over parts, by samples, is the whole batch's loss.

        `mean` is the weight of a sample in the whole batch, over all processes; None changes nothing.
        """
        return result

    # Of answers

    def ask(self, batch: Batch) -> Any:
        """Return what the model answers to a batch's inputs."""
        return self.codec.ask(self.model, batch)

    def answer(self, batch: Batch) -> dict[str, Tensor]:
        """Return what the model says to each sample of a batch, "output" among it, in float32."""
        inputs = {name: value for name, value in batch.items() if name not in (*self.codec.target_names, PLACE)}
        return self.read(self(inputs)["output"].float(), batch)

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return what a raw answer, B, ..., says to a batch, ready to be measured; that of an exported model, too."""
        return {"output": output}

    # For people
