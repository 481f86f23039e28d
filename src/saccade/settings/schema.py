"""The settings of a run: a tree of dataclasses, with type, range, help and unit at each field."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_type_hints

from .values import (
    BELOW_ONE,
    COUNT,
    INSIDE,
    NOT_NEGATIVE,
    PORTION,
    POSITIVE,
    SEED,
    SHARE,
    ConfigError,
    Range,
    Several,
    other_words,
)


def setting(default: Any, text: str, allowed: Range | Several | None = None, *, unset: str = "", unit: str = "") -> Any:
    """Return a field with what there is to know of it.

    Args:
        text: help, for flags, the JSON Schema and editors.
        allowed: the numbers it takes.
        unset: what holds where it is null, or what the default of its flag is called.
        unit: of its number.
    """
    about = {"help": text, "allowed": allowed, "unset": unset, "unit": unit}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


@dataclass(kw_only=True)
class DataConfig:
    """Dataset and its split."""

    path: str = setting(
        "",
        "image folder, CSV/TSV/Parquet list, .npz file, .tar shards or hf:NAME",
        unset="the Fashion-MNIST sample in the package",
    )
    val: str | None = setting(None, "validation images", unset="found beside the training images, else held out")
    val_share: float = setting(0.1, "share of samples held out where there is no validation split", INSIDE)
    split_seed: int = setting(0, "random seed of the samples held out, the same for every run's seed", SEED)
    img_size: int | None = setting(
        None,
        "input resolution in pixels",
        Range(1, 16384),
        unset="inferred from the dataset and the model",
        unit="pixels",
    )
    mean: list[float] | None = setting(
        None,
        "mean of each channel, from 0 to 1",
        Several(SHARE, (1, 3)),
        unset="measured on arrays, else the model's",
    )
    std: list[float] | None = setting(
        None,
        "standard deviation of each channel",
        Several(PORTION, (1, 3)),
        unset="measured on arrays, else the model's",
    )
    workers: int | None = setting(
        None,
        "number of data-loading processes; 0 loads in the main process",
        Range(0, 1024),
        unset="number of CPU cores, at most 8",
    )
    resident: Literal["auto", "always", "never"] = setting("auto", "keep images decoded; auto: of files up to 2 GiB")
    buffer: int = setting(4096, "undecoded images among which a stream is shuffled", COUNT)
    bad_limit: float = setting(0.05, "share of unreadable images at which training stops", SHARE)
    columns: dict[str, str] = setting(
        {},
        "columns of a CSV, TSV or Parquet list, e.g. image=filename,label=breed",
        unset="found by name",
    )
    train_limit: int | None = setting(None, "number of training samples to use, balanced over classes", COUNT)
    keep_aspect: bool = setting(
        False, "keep the aspect ratio of images: the shorter side has img_size pixels (task vqa)"
    )
    group: str | None = setting(
        None, "column of the list, e.g. patient_id; samples that share its value stay in the same split"
    )
    folds: int | None = setting(None, "number of cross-validation folds, one of which validates", Range(2, 1000))
    fold: int = setting(0, "index of the validation fold, from 0", Range(0, 999))


@dataclass(kw_only=True)
class ModelConfig:
    """Model, plug-ins and initial weights."""

    name: str = setting("glnet_nano", "model name, from saccade or timm", unset="the recipe's, glnet_nano in `small`")
    options: dict[str, Any] = setting({}, "arguments of the model's constructor")
    plugins: list[str] = setting([], "plug-ins, e.g. broadcast or drloc:weight=0.3")
    drop_path: float | None = setting(None, "stochastic depth rate", BELOW_ONE, unset="the model's")
    pretrained: bool = setting(
        False, "start from timm's pretrained weights, from the Hugging Face Hub or its local cache"
    )
    checkpoint: str | None = setting(None, "start from the weights in a file or of a run directory")
    probe: bool = setting(False, "train the classifier alone (linear probe)")
    freeze: float = setting(0.0, "share of the layers, from the first on, that are not trained", BELOW_ONE)
    keep_statistics: bool = setting(False, "keep the running statistics of pretrained batch norms")
    head: str | None = setting(None, "head of a dense task, e.g. upernet or fpn:width=128", unset="the task's default")
    cpu_head: str | None = setting(None, "head of a dense task on a CPU, where none is given", unset="the same")


@dataclass(kw_only=True)
class AugmentConfig:
    """Augmentation of training images; every draw is a function of seed, epoch and image."""

    crop: Literal["pad", "resized", "none"] = setting("pad", "random crop of a padded or of a resized image")
    pad: float = setting(0.125, "padding on each side, as a share of the side", SHARE)
    scale: list[float] = setting(
        [0.08, 1.0], "area of a resized crop, smallest and largest", Several(PORTION, (2,), rising=True)
    )
    ratio: list[float] = setting(
        [0.75, 4 / 3], "aspect ratio of a resized crop, smallest and largest", Several(POSITIVE, (2,), rising=True)
    )
    flip: float = setting(0.5, "probability of a horizontal flip", SHARE)
    rand_ops: int = setting(0, "number of RandAugment operations", Range(0, 8))
    rand_magnitude: float = setting(9.0, "magnitude of RandAugment", Range(0, 10))
    rand_spread: float = setting(0.5, "standard deviation of the magnitude", NOT_NEGATIVE)
    rand_kind: Literal["simple", "timm", "vilt"] = setting(
        "simple", "RandAugment's operations; timm: its rand-m9-mstd0.5-inc1; vilt: those of ViLT's code (task vqa)"
    )
    rand_prob: float = setting(1.0, "probability of each RandAugment operation; timm's is 0.5", SHARE)
    rand_interpolation: Literal["bilinear", "bicubic", "random"] = setting("bilinear", "interpolation of RandAugment")
    jitter: float = setting(0.0, "colour jitter of brightness, contrast and saturation", SHARE)
    distort: float = setting(
        0.0, "probability of each photometric distortion: brightness, contrast, saturation and hue", SHARE
    )
    erase: float = setting(0.0, "probability of random erasing", SHARE)
    erase_kind: Literal["colour", "pixel"] = setting("colour", "fill of random erasing: one colour, or noise per pixel")
    mixup: float = setting(0.0, "mixup alpha; 0 turns it off", NOT_NEGATIVE)
    cutmix: float = setting(0.0, "cutmix alpha; 0 turns it off", NOT_NEGATIVE)
    mix_prob: float = setting(1.0, "probability of mixing", SHARE)
    switch_prob: float = setting(0.5, "probability of cutmix where both are on", SHARE)
    repeats: int = setting(1, "repeated augmentation: copies of an image per epoch", COUNT)
    off_epochs: int = setting(0, "last epochs without RandAugment, erasing and mixing", Range(0, 2**31 - 1))
    full_epochs: int | None = setting(
        None, "number of epochs that full augmentation is meant for; shorter runs get less", COUNT
    )


@dataclass(kw_only=True)
class OptimConfig:
    """Optimizer."""

    name: str = setting("adamw", "optimizer, any of timm's")
    lr: float = setting(
        1e-3,
        "peak learning rate",
        POSITIVE,
        unset="from the recipe and model family; lower for small datasets",
    )
    lr_batch: int | None = setting(
        None, "batch size that the learning rate is meant for; it is scaled in proportion", COUNT
    )
    batch_size: int = setting(
        128,
        "batch size over all processes",
        COUNT,
        unset="the recipe's, 256 in `small`; smaller for small datasets",
    )
    least_steps: int | None = setting(
        None, "steps per epoch below which the batch is halved, with a lower learning rate", COUNT
    )
    accumulate: int = setting(1, "gradient accumulation: parts a batch is run in", COUNT)
    weight_decay: float = setting(0.05, "weight decay", NOT_NEGATIVE)
    momentum: float = setting(0.9, "momentum", BELOW_ONE)
    betas: list[float] | None = setting(None, "betas", Several(BELOW_ONE, (2, 3)), unset="the optimizer's")
    eps: float | None = setting(None, "epsilon", POSITIVE, unset="the optimizer's")
    layer_decay: float | None = setting(None, "layer-wise learning-rate decay", PORTION)
    new_scale: float = setting(1.0, "learning-rate multiplier of parameters that are not pretrained", POSITIVE)
    clip: float | None = setting(None, "largest gradient norm", POSITIVE)


@dataclass(kw_only=True)
class ScheduleConfig:
    """Length of training and learning-rate schedule."""

    epochs: int = setting(100, "number of epochs", COUNT, unset="the recipe's, 100 in `small`", unit="epochs")
    warmup: float = setting(5.0, "length of the warm-up", NOT_NEGATIVE, unit="epochs")
    warmup_lr: float = setting(1e-6, "learning rate at the start of the warm-up", NOT_NEGATIVE)
    min_lr: float = setting(1e-5, "learning rate at the end", NOT_NEGATIVE)
    curve: Literal["cosine", "poly", "steps"] = setting("cosine", "how the learning rate falls after the warm-up")
    power: float = setting(1.0, "exponent of the polynomial curve", POSITIVE)
    falls: list[float] = setting(
        [0.667, 0.917],
        "of the steps curve: shares of the training at which the learning rate falls to a tenth",
        Several(INSIDE, rising=True),
    )
    steps: int | None = setting(None, "length in steps instead of epochs", COUNT, unit="steps")
    warmup_steps: int | None = setting(
        None, "length of the warm-up in steps instead of epochs", Range(0, 2**31 - 1), unit="steps"
    )
    warmup_share: float | None = setting(None, "length of the warm-up as a share of the training", SHARE)
    head_epochs: float = setting(
        0.0,
        "epochs at the start, at most a third of all, in which pretrained parameters are frozen",
        NOT_NEGATIVE,
        unit="epochs",
    )
    patience: int | None = setting(
        None, "early stopping: validations in a row (see keep.evaluate_every) without improvement", COUNT
    )


@dataclass(kw_only=True)
class LossConfig:
    """Loss."""

    smoothing: float = setting(0.0, "label smoothing", BELOW_ONE)
    class_weights: Literal["none", "balanced"] | list[float] = setting(
        "none", "weights of classes: balanced, or a number per class", Several(POSITIVE)
    )


@dataclass(kw_only=True)
class EngineConfig:
    """Device, precision, compilation and parallelism."""

    device: str = setting("auto", "device to use, e.g. cpu, cuda or cuda:1", unset="a GPU if available, else cpu")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "precision; auto: bfloat16 on a GPU, else float32"
    )
    compile: bool | None = setting(None, "compile the model with torch.compile", unset="on a GPU")
    graphs: bool | None = setting(
        None, "replay whole steps as CUDA graphs", unset="where the dataset is in the GPU's memory"
    )
    channels_last: bool = setting(True, "channels-last memory format, on a GPU")
    grad_checkpointing: bool = setting(False, "gradient checkpointing")
    parallel: Literal["ddp", "fsdp"] = setting("ddp", "data parallelism under torchrun")
    threads: int | None = setting(None, "number of CPU threads", Range(1, 4096))
    kernels: str = setting("auto", "kernels that may run, see `saccade kernels`; -NAME leaves one out")


@dataclass(kw_only=True)
class KeepConfig:
    """Averaged weights, saving, validation interval and logging."""

    ema: float | None = setting(
        None, "decay of the exponential moving average of the weights, which are then the result", INSIDE
    )
    every_steps: int | None = setting(None, "save the state every so many steps", COUNT, unit="steps")
    every_seconds: float = setting(
        30.0, "save the state when the last one is this old", Range(0, endless=True), unit="seconds"
    )
    states: int = setting(2, "number of saved states to keep", COUNT)
    evaluate_every: int = setting(1, "epochs between validations", COUNT, unit="epochs")
    tensorboard: bool = setting(False, "write TensorBoard logs")


@dataclass(kw_only=True)
class TrainConfig:
    """All settings of a run."""

    seed: int = setting(0, "random seed for weight init, data order and augmentation", SEED)
    recipe: str | None = setting(
        None, "recipe name or YAML file", unset="the task's, `small` for classify; `finetune` with pretrained weights"
    )
    requires_checkpoint: bool = setting(False, "refuse to start without pretrained weights")
    task: str | None = setting(
        None,
        "task and its options, e.g. classify, segment or multilabel:loss=asymmetric",
        unset="inferred from the dataset's layout",
    )
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    keep: KeepConfig = field(default_factory=KeepConfig)

    def __post_init__(self) -> None:
        """Refuse numbers out of their range."""
        for name, value in flatten(self).items():
            allowed = RANGES.get(name)
            if allowed is None or value is None or isinstance(value, str) or allowed.holds(value):
                continue
            others = "".join(f", or {word}" for word in other_words(HINTS[name]))
            raise ConfigError(f"{name} = {value} was given; it must be {allowed}{others}")


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a settings tree by dotted name."""
    leaves: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        name = f"{prefix}{item.name}"
        leaves.update(flatten(value, f"{name}.") if is_dataclass(value) else {name: value})
    return leaves


def walk(kind: type = TrainConfig, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """Yield name, field and type hint of every setting of a tree's class."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        hint = hints[item.name]
        if is_dataclass(hint):
            yield from walk(hint, f"{prefix}{item.name}.")  # type: ignore[arg-type]
        else:
            yield f"{prefix}{item.name}", item, hint


FIELDS = {name: item for name, item, _ in walk()}
HINTS = {name: hint for name, _, hint in walk()}
RANGES: dict[str, Range | Several] = {
    name: item.metadata["allowed"] for name, item in FIELDS.items() if item.metadata["allowed"] is not None
}


def help_of(name: str, *, default: str | None = None) -> str:
    """Return the help of a setting's flag, with what holds where it is not given.

    Args:
        default: instead of the setting's own words for that; empty for none.
    """
    about = FIELDS[name].metadata
    unset = about["unset"] if default is None else default
    return f"{about['help']} (default: {unset})" if unset else about["help"]
