"""The settings of a training run: one tree of dataclasses for recipes, flags and the run's own `config.yaml`."""

import dataclasses
import difflib
import types
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml

from .aliases import find_alias
from .ranges import NO, RANGES, say_hint, try_value
from .wording import is_number
from .yaml_text import load_yaml

ConfigT = TypeVar("ConfigT")


class Retired(NamedTuple):
    """A setting that runs were once written with."""

    default: Any  # that it had last
    now: str  # what is done instead


RETIRED = {"engine.compile_jobs": Retired(1, "blocks are compiled one kind after another")}


class ConfigError(ValueError):
    """A setting that does not exist or does not take the value given."""


@dataclass(kw_only=True)
class DataConfig:
    """What is trained on."""

    path: str = ""  # a folder, a list, an array file, shards; nothing is the embedded set
    val: str | None = None  # where the validation images are, if not found beside the others
    val_share: float = 0.1  # held out where there is no validation split
    split_seed: int = 0  # of the images held out: the same ones whatever the run's seed
    img_size: int | None = None  # None: the images' own if they all have one size, else the model's
    mean: list[float] | None = None  # None: of the training set if it is in memory, else the model's
    std: list[float] | None = None
    workers: int | None = None  # processes that read files; None: as many as there are cores, at most 8
    resident: Literal["auto", "always", "never"] = "auto"  # keep images decoded: auto what fits, of files up to 2 GiB
    buffer: int = 4096  # undecoded images a stream shuffles among
    bad_limit: float = 0.05  # share of unreadable images at which training stops
    columns: dict[str, str] = field(default_factory=dict)  # of a list: what is read as image, label, ... if named so
    train_limit: int | None = None  # use only this many training images, balanced over classes
    group: str | None = None  # column of a list: samples of one patient, video, ... are never on both sides of a split
    folds: int | None = None  # cut the training samples into so many parts, and validate on one of them
    fold: int = 0  # which one, from 0 on


@dataclass(kw_only=True)
class ModelConfig:
    """What is trained."""

    name: str = "glnet_nano"
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the model's constructor
    plugins: list[str] = field(default_factory=list)  # "broadcast", "drloc:weight=0.3", ...
    drop_path: float | None = None
    pretrained: bool = False  # timm's own weights, from its hub or the hub's cache on this machine
    checkpoint: str | None = None  # weights to start from: a run, a safetensors file, a published checkpoint
    probe: bool = False  # train the classifier alone
    freeze: float = 0.0  # share of the layers, from the first on, that stay as they are
    keep_statistics: bool = False  # of trained weights: batch normalisation goes on with the means it was trained with
    head: str | None = None  # of tasks that have several: "upernet", "fpn:width=128", ...; None: the task's own choice


@dataclass(kw_only=True)
class AugmentConfig:
    """What is done to images in training; every draw is a function of seed, epoch and image."""

    crop: Literal["pad", "resized", "none"] = "pad"
    pad: float = 0.125  # of the side, on each side
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # area of a resized crop
    ratio: list[float] = field(default_factory=lambda: [0.75, 4 / 3])
    flip: float = 0.5
    rand_ops: int = 0  # operations of RandAugment
    rand_magnitude: float = 9.0  # of 10
    rand_spread: float = 0.5  # deviation of the magnitude
    rand_kind: Literal["simple", "timm"] = "simple"  # "timm": its operations and ranges, rand-m9-mstd0.5-inc1
    rand_prob: float = 1.0  # of each operation to be done; timm's is 0.5
    rand_interpolation: Literal["bilinear", "bicubic", "random"] = "bilinear"  # of what RandAugment moves
    jitter: float = 0.0  # of brightness, contrast and saturation
    erase: float = 0.0  # probability
    erase_kind: Literal["colour", "pixel"] = "colour"  # one colour, or noise of every pixel as timm's
    mixup: float = 0.0  # alpha; 0 is off
    cutmix: float = 0.0
    mix_prob: float = 1.0
    switch_prob: float = 0.5  # of cutmix where both are on
    repeats: int = 1  # copies of an image in an epoch, each drawn anew
    off_epochs: int = 0  # last epochs without RandAugment, erasing and mixing
    full_epochs: int | None = None  # length of runs that have all of it: shorter ones get less, the shortest none


@dataclass(kw_only=True)
class OptimConfig:
    """How weights are changed."""

    name: str = "adamw"  # any optimizer of timm
    lr: float = 1e-3
    lr_batch: int | None = None  # batch size that `lr` is meant for: scaled in proportion
    batch_size: int = 128  # over all processes
    least_steps: int | None = None  # of an epoch: small sets get smaller batches and a lower rate for it
    accumulate: int = 1  # parts a batch is run in
    weight_decay: float = 0.05
    momentum: float = 0.9
    betas: list[float] | None = None
    eps: float | None = None
    layer_decay: float | None = None
    new_scale: float = 1.0  # of trained weights: what is new learns at so many times the rate
    clip: float | None = None  # largest norm of the gradient


@dataclass(kw_only=True)
class ScheduleConfig:
    """How long, and how the learning rate runs."""

    epochs: int = 100
    warmup: float = 5.0  # epochs
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    curve: Literal["cosine", "poly", "steps"] = "cosine"  # how the rate falls after the warm-up
    power: float = 1.0  # of a polynomial fall
    falls: list[float] = field(default_factory=lambda: [0.667, 0.917])  # of steps: shares of it all, a tenth from there
    steps: int | None = None  # length in steps instead of epochs, of recipes that count so
    warmup_steps: int | None = None  # length of the warm-up in steps instead of epochs
    head_epochs: float = 0.0  # of trained weights: train what is new alone for so long, at most a third of it all
    patience: int | None = None  # stop after so many validations in a row, see keep.evaluate_every, none of them better


@dataclass(kw_only=True)
class LossConfig:
    """What is asked of the answers."""

    smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] | list[float] = "none"


@dataclass(kw_only=True)
class EngineConfig:
    """How it is computed."""

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: bfloat16 on a GPU
    compile: bool | None = None  # None: on a GPU
    graphs: bool | None = None  # replay whole steps as CUDA graphs; None: where a resident set allows it
    channels_last: bool = True
    grad_checkpointing: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun
    threads: int | None = None  # of the CPU
    kernels: str = "auto"  # fast code that stands for plain modules: "auto", "off", "gelu,attention" alone, "-gelu" not


@dataclass(kw_only=True)
class KeepConfig:
    """What is written, and when."""

    ema: float | None = None  # decay of the averaged weights, which are then the result
    every_steps: int | None = None  # save the state this often
    every_seconds: float = 30.0  # or when the last one is this old
    states: int = 2  # how many states to keep
    evaluate_every: int = 1  # epochs
    tensorboard: bool = False


@dataclass(kw_only=True)
class TrainConfig:
    """A whole run."""

    seed: int = 0
    recipe: str | None = None  # the recipe the settings began from
    requires_checkpoint: bool = False  # refuse to begin without trained weights: fine-tuning
    task: str | None = None  # "classify", "multilabel:loss=asymmetric", ...; None: what the data's layout says
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
            if allowed is None or value is None or isinstance(value, str):
                continue
            if not allowed.holds(value):
                others = "".join(f", or {word}" for word in _other_words(self, name))
                raise ConfigError(f"{name} = {value} was given; it must be {allowed}{others}")


def leave_out(config: TrainConfig, names: Sequence[str], reason: str) -> tuple[TrainConfig, list[str]]:
    """Return settings without some augmentation and smoothing of labels, and a remark on what was asked of it."""
    left = [name for name in names if getattr(config.augment, name)] + ["smoothing"] * bool(config.loss.smoothing)
    nothing: dict[str, Any] = dict.fromkeys(names, 0.0)
    augment = replace(config.augment, **nothing)
    config = replace(config, augment=augment, loss=replace(config.loss, smoothing=0.0))
    return config, [f"{', '.join(left)}: left out, since {reason}"] if left else []


def overlay(config: ConfigT, values: Mapping[str, Any], *, source: str = "the settings") -> ConfigT:
    """Return a copy of a settings tree with values replaced, each checked against the tree's types.

    Args:
        values: nested, or with dotted names, or both.
        source: where the values come from, for errors; empty for what the user gave.
    """
    return _overlay(config, _nested(values, source), source, "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that names what was most likely meant; nothing if that is unclear."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Turn `name=value` texts, values as in YAML, into a mapping of dotted names."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text!r} was given; write it as name=value, for example optim.layer_decay=0.7")
        found[name.strip()] = read_value(value)
    return found


def read_value(text: str) -> Any:
    """Read a value as YAML does, with 1e-3 as a number too."""
    value = _load(text, f"the value {short(text)!r} cannot be read")
    return float(value) if isinstance(value, str) and is_number(value) else value


def to_yaml(config: Any) -> str:
    """Write a settings tree as YAML."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def drop_retired(values: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Return a run's settings without those of earlier versions; a warning names the ones that somebody had chosen."""
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    for full, retired in RETIRED.items():
        group, _, name = full.rpartition(".")
        place = kept.get(group)
        if isinstance(place, dict) and place.get(name, retired.default) != retired.default:
            warnings.warn(f"{source}: {full} = {place[name]} is no longer a setting: {retired.now}", stacklevel=3)
        if isinstance(place, dict):
            place.pop(name, None)
    return kept


def read_yaml(text: str, *, source: str) -> dict[str, Any]:
    """Read a mapping from YAML; `source` is what an error calls the text."""
    values = _load(text, f"{source} is not YAML")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{source} holds a {type(values).__name__}; settings are names with values")
    return values


def _load(text: str, complaint: str) -> Any:
    try:
        return load_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{complaint}: {error}") from None


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a settings tree by dotted name."""
    leaves: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        name = f"{prefix}{item.name}"
        leaves.update(flatten(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value})
    return leaves


def _other_words(config: Any, name: str) -> list[str]:
    """Return what a setting takes beside numbers and lists of them."""
    *groups, last = name.split(".")
    for group in groups:
        config = getattr(config, group)
    hint = typing.get_type_hints(type(config))[last]
    args = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    return [say_hint(arg) for arg in args if arg not in (int, float) and get_origin(arg) is not list]


def _place(source: str) -> str:
    """Return the beginning of an error about values from a source; nothing of what the user gave."""
    return f"{source}: " if source else ""


def short(text: str) -> str:
    """Return a text cut to what a message has room for."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def _nested(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"{_place(source)}the name {short(repr(name))} was given; names of settings are strings")
        *groups, last = name.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"{_place(source)}{short(name)} and {short(group)} = {short(repr(place))} were given; "
                    f"{short(group)} is a group of settings"
                )
        if isinstance(value, Mapping) and isinstance(place.get(last), dict):
            place[last] |= value
        else:
            place[last] = dict(value) if isinstance(value, Mapping) else value
    return tree


def _overlay(config: Any, values: Mapping[str, Any], source: str, prefix: str) -> Any:
    hints = typing.get_type_hints(type(config))
    changes = {}
    for name, value in values.items():
        full = f"{prefix}{name}"
        if name not in hints:
            if full in RETIRED:
                raise ConfigError(f"{_place(source)}{full} is no longer a setting: {RETIRED[full].now}; leave it out")
            near = _nearest(config, short(full), prefix, hints)
            raise ConfigError(f"{_place(source)}unknown setting {short(full)!r}{near}")
        current = getattr(config, name)
        if full == "engine.kernels" and value is False:
            value = "off"  # as YAML reads the word
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                given = short(repr(value))
                raise ConfigError(
                    f"{_place(source)}{full} = {given} was given; it is a group of settings: name one in it, e.g. "
                    f"{full}.{next(iter(typing.get_type_hints(type(current))))}"
                )
            changes[name] = _overlay(current, value, source, f"{full}.")
        else:
            fitted = fit_value(value, hints[name], full, source=source)
            changes[name] = {**current, **fitted} if isinstance(current, dict) else fitted
    return dataclasses.replace(config, **changes)


def _nearest(config: Any, full: str, prefix: str, hints: Mapping[str, Any]) -> str:
    names = [f"{prefix}{name}" for name in hints]
    everywhere = list(flatten(config, prefix))
    last = full.rsplit(".", 1)[-1]
    if (alias := find_alias(full)) is not None and last not in hints:
        return f"; did you mean {alias!r}?"
    close = difflib.get_close_matches(full, names + everywhere, n=1, cutoff=0.6) or [
        name for name in everywhere if name.rsplit(".", 1)[-1] == last
    ]
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose from {', '.join(names)}"


def fit_value(value: Any, hint: Any, name: str, *, source: str) -> Any:
    """Return a value as a type hint wants it; an error calls it by `name`, and where it is from by `source`."""
    fitted = try_value(value, hint)
    if fitted is NO:
        given = f"{short(repr(value))} ({type(value).__name__})"
        raise ConfigError(f"{_place(source)}{name} = {given} was given; it takes {say_hint(hint)}")
    return fitted
