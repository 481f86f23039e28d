"""The settings of a run: a tree of pydantic dataclasses, with type, range, help and unit at each field."""

from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, Literal

from annotated_types import Interval
from pydantic import StrictBool

from .kinds import (
    NUMBER,
    ORDERED,
    WHOLE,
    BelowOne,
    Count,
    Inside,
    Items,
    NotNegative,
    NotNegativeOrInfinite,
    Options,
    Portion,
    Positive,
    Seed,
    Share,
    group,
    setting,
)


@group("data.")
class DataConfig:
    """Dataset and its split."""

    path: str = setting(
        "",
        "image folder, CSV/TSV/Parquet list, .npz file, .tar shards or hf:NAME",
        unset="the Fashion-MNIST sample in the package",
    )
    val: str | None = setting(None, "validation images", unset="found beside the training images, else held out")
    val_share: Inside = setting(0.1, "share of samples held out where there is no validation split")
    split_seed: Seed = setting(0, "random seed of the samples held out, the same for every run's seed")
    img_size: Annotated[int, Interval(ge=1, le=16384), WHOLE] | None = setting(
        None, "input resolution in pixels", unset="inferred from the dataset and the model", unit="pixels"
    )
    mean: Annotated[list[Share], Items((1, 3))] | None = setting(
        None, "mean of each channel, from 0 to 1", unset="measured on arrays, else the model's"
    )
    std: Annotated[list[Portion], Items((1, 3))] | None = setting(
        None, "standard deviation of each channel", unset="measured on arrays, else the model's"
    )
    workers: Annotated[int, Interval(ge=0, le=1024), WHOLE] | None = setting(
        None, "number of data-loading processes; 0 loads in the main process", unset="number of CPU cores, at most 8"
    )
    resident: Literal["auto", "always", "validation", "never"] = setting(
        "auto", "keep images decoded: all, those of validation, or none; auto: of files up to 2 GiB"
    )
    buffer: Count = setting(4096, "undecoded images among which a stream is shuffled")
    bad_limit: Share = setting(0.05, "share of unreadable images at which training stops")
    columns: dict[str, str] = setting(
        {}, "columns of a CSV, TSV or Parquet list, e.g. image=filename,label=breed", unset="found by name"
    )
    train_limit: Count | None = setting(None, "number of training samples to use, balanced over classes")
    keep_aspect: StrictBool = setting(
        False, "keep the aspect ratio of images: the shorter side has img_size pixels (task vqa)"
    )
    group: str | None = setting(
        None, "column of the list, e.g. patient_id; samples that share its value stay in the same split"
    )
    folds: Annotated[int, Interval(ge=2, le=1000), WHOLE] | None = setting(
        None, "number of cross-validation folds, one of which validates"
    )
    fold: Annotated[int, Interval(ge=0, le=999), WHOLE] = setting(0, "index of the validation fold, from 0")


@group("model.")
class ModelConfig:
    """Model, plug-ins and initial weights."""

    name: str = setting("glnet_nano", "model name, from saccade or timm", unset="the recipe's, glnet_nano in `small`")
    options: Options = setting({}, "arguments of the model's constructor")
    plugins: Annotated[list[str], ORDERED] = setting([], "plug-ins, e.g. broadcast or drloc:weight=0.3")
    drop_path: BelowOne | None = setting(None, "stochastic depth rate", unset="the model's")
    pretrained: StrictBool = setting(
        False, "start from timm's pretrained weights, from the Hugging Face Hub or its local cache"
    )
    checkpoint: str | None = setting(None, "start from the weights in a file or of a run directory")
    probe: StrictBool = setting(False, "train the classifier alone (linear probe)")
    freeze: BelowOne = setting(0.0, "share of the layers, from the first on, that are not trained")
    keep_statistics: StrictBool = setting(False, "keep the running statistics of pretrained batch norms")
    head: str | None = setting(None, "head of a dense task, e.g. upernet or fpn:width=128", unset="the task's default")
    cpu_head: str | None = setting(None, "head of a dense task on a CPU, where none is given", unset="the same")


@group("augment.")
class AugmentConfig:
    """Augmentation of training images; every draw is a function of seed, epoch and image."""

    crop: Literal["pad", "resized", "none"] = setting("pad", "random crop of a padded or of a resized image")
    pad: Share = setting(0.125, "padding on each side, as a share of the side")
    scale: Annotated[list[Portion], Items((2,), rising=True)] = setting(
        [0.08, 1.0], "area of a resized crop, smallest and largest"
    )
    ratio: Annotated[list[Positive], Items((2,), rising=True)] = setting(
        [0.75, 4 / 3], "aspect ratio of a resized crop, smallest and largest"
    )
    flip: Share = setting(0.5, "probability of a horizontal flip")
    rand_ops: Annotated[int, Interval(ge=0, le=8), WHOLE] = setting(0, "number of RandAugment operations")
    rand_magnitude: Annotated[float, Interval(ge=0, le=10), NUMBER] = setting(9.0, "magnitude of RandAugment")
    rand_spread: NotNegative = setting(0.5, "standard deviation of the magnitude")
    rand_kind: Literal["simple", "timm", "vilt"] = setting(
        "simple", "RandAugment's operations; timm: its rand-m9-mstd0.5-inc1; vilt: those of ViLT's code (task vqa)"
    )
    rand_prob: Share = setting(1.0, "probability of each RandAugment operation; timm's is 0.5")
    rand_interpolation: Literal["bilinear", "bicubic", "random"] = setting("bilinear", "interpolation of RandAugment")
    jitter: Share = setting(0.0, "colour jitter of brightness, contrast and saturation")
    distort: Share = setting(
        0.0, "probability of each photometric distortion: brightness, contrast, saturation and hue"
    )
    erase: Share = setting(0.0, "probability of random erasing")
    erase_kind: Literal["colour", "pixel"] = setting("colour", "fill of random erasing: one colour, or noise per pixel")
    mixup: NotNegative = setting(0.0, "mixup alpha; 0 turns it off")
    cutmix: NotNegative = setting(0.0, "cutmix alpha; 0 turns it off")
    mix_prob: Share = setting(1.0, "probability of mixing")
    switch_prob: Share = setting(0.5, "probability of cutmix where both are on")
    repeats: Count = setting(1, "repeated augmentation: copies of an image per epoch")
    off_epochs: Annotated[int, Interval(ge=0, le=2**31 - 1), WHOLE] = setting(
        0, "last epochs without RandAugment, erasing and mixing"
    )
    full_epochs: Count | None = setting(
        None, "number of epochs that full augmentation is meant for; shorter runs get less"
    )


@group("optim.")
class OptimConfig:
    """Optimizer."""

    name: str = setting("adamw", "optimizer, any of timm's")
    lr: Positive = setting(
        0.001, "peak learning rate", unset="from the recipe and model family; lower for small datasets"
    )
    lr_batch: Count | None = setting(None, "batch size that the learning rate is meant for; it is scaled in proportion")
    batch_size: Count = setting(
        128, "batch size over all processes", unset="the recipe's, 256 in `small`; smaller for small datasets"
    )
    least_steps: Count | None = setting(
        None, "steps per epoch below which the batch is halved, with a lower learning rate"
    )
    accumulate: Count = setting(1, "gradient accumulation: parts a batch is run in")
    weight_decay: NotNegative = setting(0.05, "weight decay")
    momentum: BelowOne = setting(0.9, "momentum")
    betas: Annotated[list[BelowOne], Items((2, 3))] | None = setting(None, "betas", unset="the optimizer's")
    eps: Positive | None = setting(None, "epsilon", unset="the optimizer's")
    layer_decay: Portion | None = setting(None, "layer-wise learning-rate decay")
    new_scale: Positive = setting(1.0, "learning-rate multiplier of parameters that are not pretrained")
    clip: Positive | None = setting(None, "largest gradient norm")


@group("schedule.")
class ScheduleConfig:
    """Length of training and learning-rate schedule."""

    epochs: Count = setting(100, "number of epochs", unset="the recipe's, 100 in `small`", unit="epochs")
    warmup: NotNegative = setting(5.0, "length of the warm-up, at most a fifth of the training", unit="epochs")
    warmup_lr: NotNegative = setting(1e-06, "learning rate at the start of the warm-up")
    min_lr: NotNegative = setting(1e-05, "learning rate at the end")
    curve: Literal["cosine", "poly", "steps"] = setting("cosine", "how the learning rate falls after the warm-up")
    power: Positive = setting(1.0, "exponent of the polynomial curve")
    falls: Annotated[list[Inside], Items(rising=True)] = setting(
        [0.667, 0.917], "of the steps curve: shares of the training at which the learning rate falls to a tenth"
    )
    steps: Count | None = setting(None, "length in steps instead of epochs", unit="steps")
    warmup_steps: Annotated[int, Interval(ge=0, le=2**31 - 1), WHOLE] | None = setting(
        None, "length of the warm-up in steps instead of epochs, at most a fifth of the training", unit="steps"
    )
    warmup_share: Share | None = setting(None, "length of the warm-up as a share of the training")
    head_epochs: NotNegative = setting(
        0.0, "epochs at the start, at most a third of all, in which pretrained parameters are frozen", unit="epochs"
    )
    patience: Count | None = setting(
        None, "early stopping: validations in a row (see keep.evaluate_every) without improvement"
    )


@group("loss.")
class LossConfig:
    """Loss."""

    smoothing: BelowOne = setting(0.0, "label smoothing")
    class_weights: Literal["none", "balanced"] | Annotated[list[Positive], Items()] = setting(
        "none", "weights of classes: balanced, or a number per class"
    )


@group("engine.")
class EngineConfig:
    """Device, precision, compilation and parallelism."""

    device: str = setting("auto", "device to use, e.g. cpu, cuda or cuda:1", unset="a GPU if available, else cpu")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "precision; auto: bfloat16 on a GPU, else float32"
    )
    compile: StrictBool | None = setting(None, "compile the model with torch.compile", unset="on a GPU")
    graphs: StrictBool | None = setting(
        None, "replay whole steps as CUDA graphs", unset="on one GPU, by most optimizers"
    )
    channels_last: StrictBool = setting(True, "channels-last memory format, on a GPU")
    grad_checkpointing: StrictBool = setting(False, "gradient checkpointing")
    parallel: Literal["ddp", "fsdp"] = setting("ddp", "data parallelism under torchrun")
    threads: Annotated[int, Interval(ge=1, le=4096), WHOLE] | None = setting(None, "number of CPU threads")
    kernels: str = setting("auto", "kernels that may run, see `saccade kernels`; -NAME leaves one out")


@group("keep.")
class KeepConfig:
    """Averaged weights, saving, validation interval and logging."""

    ema: Inside | None = setting(
        None, "decay of the exponential moving average of the weights, which are then the result"
    )
    every_steps: Count | None = setting(None, "save the state every so many steps", unit="steps")
    every_seconds: NotNegativeOrInfinite = setting(30.0, "save the state when the last one is this old", unit="seconds")
    states: Count = setting(2, "number of saved states to keep")
    evaluate_every: Count = setting(1, "epochs between validations", unit="epochs")
    tensorboard: StrictBool = setting(False, "write TensorBoard logs")


@group()
class TrainConfig:
    """All settings of a run."""

    seed: Seed = setting(0, "random seed for weight init, data order and augmentation")
    recipe: str | None = setting(
        None, "recipe name or YAML file", unset="the task's, `small` for classify; `finetune` with pretrained weights"
    )
    requires_checkpoint: StrictBool = setting(False, "refuse to start without pretrained weights")
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


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a settings tree by dotted name."""
    leaves: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        name = f"{prefix}{item.name}"
        leaves.update(flatten(value, f"{name}.") if is_dataclass(value) else {name: value})
    return leaves
