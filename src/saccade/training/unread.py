"""Refuse settings given by the user that the run does not use, and say what would use them.

`READ` has a rule for every setting, which says when it is used. Importing this module fails if a setting has none.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from timm.optim import get_optimizer_info

from ..data.open import Data
from ..data.source import Stream
from ..settings import AugmentConfig, ConfigError, TrainConfig, flatten, overlay
from ..settings.recipes import read_recipe, split_variants
from ..settings.strength import strength_settings
from ..tasks.opening import TaskChoice
from .idle import idle_options
from .optim import warmup_of

TRAINED = "the model starts from trained weights (--pretrained or --checkpoint)"
RESIZED = "augment.crop=resized; segment and detect have their own option scale"
OPERATIONS = "with augment.rand_ops above 0; short runs of some recipes turn it off (augment.full_epochs)"


@dataclass(frozen=True)
class Situation:
    """Facts that determine which settings a run uses."""

    asked: TrainConfig  # settings before they were resolved
    config: TrainConfig  # resolved settings
    choice: TaskChoice
    data: Data
    device: torch.device

    @cached_property
    def adapted(self) -> dict[str, Any]:
        """Settings after the task's changes, by dotted name."""
        return flatten(self.choice.kind.adapt(self.asked)[0])

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The recipe's settings, by dotted name; the defaults if the recipe does not exist here."""
        try:
            values, _ = split_variants(read_recipe(self.asked.recipe or ""), source="the recipe")
            return flatten(overlay(TrainConfig(), values))
        except (ConfigError, OSError):
            return flatten(TrainConfig())

    @property
    def images(self) -> bool:
        """Whether samples are images."""
        return self.choice.kind.reader.reads == "image"

    @property
    def operable(self) -> bool:
        """Whether RandAugment can be applied: to images, and to those of questions."""
        return not self.texts

    @property
    def scales_new(self) -> bool:
        """Whether new parameters are known: of a model that starts from weights, or of a classifier of ViLT."""
        own = (
            self.own_model and self.choice.kind.hosts.classifier and not getattr(self.choice.options, "scratch", False)
        )
        return self.starts or bool(own)

    @property
    def texts(self) -> bool:
        """Whether samples are only texts."""
        return self.choice.kind.reader.reads == "text"

    @property
    def crops(self) -> bool:
        """Whether the task has its own cropping."""
        return self.choice.kind.presenter.masks or self.choice.kind.presenter.boxes

    @property
    def stream(self) -> bool:
        """Whether training samples are a stream."""
        return isinstance(self.data.train, Stream)

    @property
    def array(self) -> bool:
        """Whether training samples are an array in memory."""
        return not isinstance(self.data.train, Stream) and self.data.train.array() is not None

    @property
    def own_model(self) -> bool:
        """Whether the task builds the model, as for Hugging Face models."""
        return self.choice.kind.hosts.builds(self.config.model.name)

    @property
    def starts(self) -> bool:
        """Whether a model of timm or saccade starts from weights, so that new parameters are known."""
        model = self.config.model
        return not self.own_model and (model.pretrained or model.checkpoint is not None)

    @property
    def files(self) -> bool:
        """Whether workers may read samples."""
        return not self.texts and not self.array

    @property
    def counted(self) -> bool:
        """Whether the number of training samples is known."""
        return not isinstance(self.data.train, Stream) or self.data.train.length is not None

    @property
    def folds(self) -> bool:
        """Whether validation samples are one fold of several."""
        return self.config.data.folds is not None

    @property
    def augment(self) -> AugmentConfig:
        """Augmentation settings."""
        return self.config.augment

    @property
    def operates(self) -> bool:
        """Whether RandAugment is on."""
        return self.augment.rand_ops > 0

    @property
    def mixes(self) -> int:
        """Number of mixing methods in use."""
        return bool(self.augment.mixup) + bool(self.augment.cutmix)

    @property
    def strong(self) -> bool:
        """Whether there is augmentation that `augment.off_epochs` turns off."""
        return self.operates or self.mixes > 0 or self.augment.erase > 0

    @property
    def weakens(self) -> bool:
        """Whether there is augmentation that is weaker in short runs."""
        return bool(strength_settings(self.asked.augment, 1.0))

    @property
    def warms_up(self) -> bool:
        """Whether there is a warm-up."""
        return warmup_of(self.config.schedule, 10**6) > 0

    @property
    def own_loss(self) -> bool:
        """Whether the loss is computed by a head or model, without class weights."""
        return self.choice.kind.presenter.boxes or (self.choice.kind.presenter.masks and self.own_model)

    @property
    def gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def launched(self) -> bool:
        """Whether torchrun started this process."""
        return "WORLD_SIZE" in os.environ

    def takes(self, option: str) -> bool:
        """Whether the optimizer has the option; unknown optimizers are refused elsewhere."""
        name = self.config.optim.name.lower().removeprefix("lookahead_")
        try:
            return bool(getattr(get_optimizer_info(name), f"has_{option}"))
        except ValueError:
            return True


@dataclass(frozen=True)
class Rule:
    """Condition under which a setting is used."""

    needs: str  # text that follows "it is only used"
    when: Callable[[Situation], bool]


ALWAYS = """
    seed recipe requires_checkpoint task
    data.path data.columns data.train_limit data.group data.folds
    model.name model.options model.plugins model.drop_path model.probe model.head
    optim.name optim.lr optim.lr_batch optim.batch_size optim.accumulate optim.weight_decay optim.layer_decay optim.clip
    schedule.min_lr schedule.curve schedule.steps schedule.warmup_steps schedule.patience
    engine.device engine.precision engine.compile engine.grad_checkpointing engine.threads
    engine.kernels
    keep.ema keep.every_steps keep.every_seconds keep.states keep.evaluate_every keep.tensorboard
"""
# Other settings: names, condition in words, condition.
WHERE: tuple[tuple[str, str, Callable[[Situation], bool]], ...] = (
    (
        "data.val",
        "by tasks whose lists do not define their own split",
        lambda s: s.choice.kind.reader.reads != "question",
    ),
    ("data.val_share", "where samples are held out of the training samples", lambda s: s.data.cut),
    ("data.split_seed", "where samples are held out of the training samples", lambda s: s.data.cut or s.folds),
    ("data.fold", "with data.folds", lambda s: s.folds),
    ("data.mean data.std", "by image tasks", lambda s: s.images),
    ("data.img_size data.bad_limit", "by tasks that read images", lambda s: not s.texts),
    ("data.workers", "where images are read from files", lambda s: s.files or s.asked.data.workers == 0),
    ("data.resident", "by tasks that read images", lambda s: not s.texts),
    ("data.buffer", "with streams of shards", lambda s: s.stream),
    ("model.pretrained", "where model.checkpoint is not given", lambda s: s.config.model.checkpoint is None),
    ("model.checkpoint", "by models of timm and saccade", lambda s: not s.own_model),
    ("model.freeze", "without model.probe", lambda s: not s.config.model.probe),
    ("model.keep_statistics", f"where {TRAINED}", lambda s: s.starts or (s.own_model and s.config.model.pretrained)),
    ("model.cpu_head", "by segmenters and detectors on backbones of timm", lambda s: s.crops and not s.own_model),
    (
        "augment.crop augment.flip augment.jitter augment.erase",
        "by image tasks",
        lambda s: s.images,
    ),
    ("augment.rand_ops", "by tasks that read images", lambda s: s.operable),
    ("data.keep_aspect", "by the task vqa", lambda s: s.choice.kind.reader.reads == "question"),
    ("augment.distort", "by image tasks", lambda s: s.images),
    ("augment.mixup augment.cutmix", "by image tasks", lambda s: s.images),
    ("augment.pad", "with augment.crop=pad", lambda s: s.images and s.augment.crop == "pad"),
    ("augment.scale", f"with {RESIZED}", lambda s: s.images and s.augment.crop == "resized"),
    ("augment.ratio", f"with {RESIZED}", lambda s: s.images and (s.crops or s.augment.crop == "resized")),
    ("augment.rand_magnitude augment.rand_spread augment.rand_kind", OPERATIONS, lambda s: s.operable and s.operates),
    ("augment.rand_prob augment.rand_interpolation", OPERATIONS, lambda s: s.operable and s.operates),
    ("augment.erase_kind", "with augment.erase above 0", lambda s: s.images and s.augment.erase > 0),
    ("augment.mix_prob", "with augment.mixup or augment.cutmix", lambda s: s.images and s.mixes > 0),
    ("augment.switch_prob", "with both augment.mixup and augment.cutmix", lambda s: s.images and s.mixes == 2),
    ("augment.repeats", "by image tasks, except on streams", lambda s: s.images and not s.stream),
    ("augment.off_epochs", "with RandAugment, erasing or mixing", lambda s: s.operable and s.strong),
    ("augment.full_epochs", "with RandAugment, erasing, mixing or jitter", lambda s: s.images and s.weakens),
    ("optim.least_steps", "where the number of training samples is known", lambda s: s.counted),
    ("optim.momentum", "by optimizers with a momentum, such as sgd", lambda s: s.takes("momentum")),
    ("optim.betas", "by optimizers with betas, such as adamw", lambda s: s.takes("betas")),
    ("optim.eps", "by optimizers with an eps, such as adamw", lambda s: s.takes("eps")),
    ("optim.new_scale", f"where {TRAINED}; of Hugging Face's models, by vqa's", lambda s: s.scales_new),
    ("schedule.head_epochs", f"where {TRAINED}, except Hugging Face's", lambda s: s.starts),
    ("schedule.epochs", "without schedule.steps", lambda s: s.asked.schedule.steps is None),
    (
        "schedule.warmup",
        "without schedule.warmup_steps and schedule.warmup_share",
        lambda s: s.config.schedule.warmup_steps is None and s.config.schedule.warmup_share is None,
    ),
    ("schedule.warmup_share", "without schedule.warmup_steps", lambda s: s.config.schedule.warmup_steps is None),
    ("schedule.warmup_lr", "with a warm-up", lambda s: s.warms_up),
    ("schedule.power", "with schedule.curve=poly", lambda s: s.config.schedule.curve == "poly"),
    ("schedule.falls", "with schedule.curve=steps", lambda s: s.config.schedule.curve == "steps"),
    ("loss.smoothing", "by tasks that classify whole samples", lambda s: not s.crops),
    ("loss.class_weights", "by tasks with a loss of saccade, except detect", lambda s: not s.own_loss),
    ("engine.graphs", "on a GPU", lambda s: s.gpu or s.asked.engine.graphs is False),
    ("engine.channels_last", "on a GPU", lambda s: s.gpu),
    ("engine.parallel", "under torchrun", lambda s: s.launched),
)
READ: dict[str, Rule] = {
    **dict.fromkeys(ALWAYS.split(), Rule("always", lambda _: True)),
    **{name: Rule(needs, when) for names, needs, when in WHERE for name in names.split()},
}


def require_rules(names: Iterable[str]) -> None:
    """Raise if `READ` has no rule for some settings."""
    if missing := set(names) ^ READ.keys():
        raise TypeError(f"READ must say when each setting is read; it does not match {', '.join(sorted(missing))}")


require_rules(flatten(TrainConfig()))


def refuse_unread(given: Iterable[str], situation: Situation) -> None:
    """Refuse settings given by the user, by dotted name, that the run does not use."""
    messages = unread(given, situation)
    if messages:
        raise ConfigError("; ".join(messages.values()))


def unread(given: Iterable[str], situation: Situation) -> dict[str, str]:
    """Return the given settings that the run does not use, each with a message; of options, their full dotted names.

    None, False, 0 and "auto" are ignored, and so are values equal to the recipe's or the defaults.
    """
    asked, defaults, recipe = flatten(situation.asked), flatten(TrainConfig()), situation.recipe
    messages, given = dict[str, str](), tuple(given)
    for name in map(_leaf, given):
        value = asked[name]
        if value is None or value == "auto":
            continue
        same = value in (defaults[name], recipe[name], 0)
        adapted, prefix = situation.adapted[name], f"{name} = {value!r} was given, but"
        if adapted != value:
            source = f"the task {situation.choice} with the model {situation.config.model.name}"
            messages[name] = f"{prefix} {source} uses {adapted!r} instead; leave it out"
        elif not same and not READ[name].when(situation):
            messages[name] = f"{prefix} has no effect in this run: it is only used {READ[name].needs}; leave it out"
    idle = idle_options(situation.asked.model, situation.config.model, recipe)
    return messages | {
        name: why for name, why in idle.items() if any(f"{name}.".startswith(f"{one}.") for one in given)
    }


def _leaf(name: str) -> str:
    """Return the setting that a dotted name belongs to: `model.options` for `model.options.depth`."""
    while name not in READ and "." in name:
        name = name.rpartition(".")[0]
    return name
