"""From settings to a model with its plug-ins, and to the task it is trained for."""

import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .config import ConfigError, LossConfig, ModelConfig, fit_value, nearest, read_value
from .data.loader import Framing
from .files import sort_header, whole_file
from .metadata import check_inputs, check_model, constructor_options, described_by, read_described
from .models import CheckpointError, load_official
from .models._backbone import Backbone
from .models._identify import require_model
from .models._official import read_checkpoint
from .plugins import ContextBroadcast, ExtraBlock, SecondOrderHead, SqueezeExcite, UniformHead, attach
from .tasks import Classify, Distillation, RelativeLocalization, Task, TeacherLabels, TokenLabelling

SMALL = 64  # sides up to this are small pictures: patches of 16 pixels would leave nothing of them


@dataclass
class Shape:
    """What the data asks of a model.

    Args:
        classes: their names, in the order of the logits.
        in_chans: channels of the pictures.
        img_size: side of the square pictures.
        mean: of each channel, 0 to 1.
        std: of each channel.
        shorter: what a picture's shorter side is brought to before its middle is taken; None takes all of it.
        notes: remarks for the log.
    """

    classes: tuple[str, ...]
    in_chans: int
    img_size: int
    mean: list[float]
    std: list[float]
    shorter: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def framing(self) -> Framing:
        """How a picture of any size becomes one of these, without chance."""
        return Framing(self.img_size, shorter=self.shorter, channels=self.in_chans)


# Plug-ins by the names they have on the command line.
ATTACHED: dict[str, Callable[..., Any]] = {
    "broadcast": ContextBroadcast,
    "extra_block": ExtraBlock,
    "second_order": SecondOrderHead,
    "squeeze": SqueezeExcite,
    "uniform": UniformHead,
}
TASKS: dict[str, Callable[..., Task]] = {"drloc": RelativeLocalization}  # each around another task
# In the place of plain classification:
TAUGHT: dict[str, Callable[..., Task]] = {
    "distill": Distillation,
    "token_label": TokenLabelling,
}
PLUGINS = {**ATTACHED, **TASKS, **TAUGHT}
NOT_OPTIONS = ("model", "task", "num_classes")  # what plug-ins are given here


def parse_plugin(text: str) -> tuple[str, dict[str, Any]]:
    """Read "name" or "name:option=value,option=value"."""
    name, _, rest = text.partition(":")
    name = name.strip()
    known = sorted(PLUGINS)
    if name not in known:
        raise ConfigError(f"there is no plug-in {name!r}; there are {', '.join(known)}{nearest(name, known)}")
    options = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"the plug-in {text!r} was given; options are written name:option=value,option=value")
        options[key.strip()] = read_value(value)
    allowed = inspect.signature(PLUGINS[name]).parameters
    for key in options:
        if key not in allowed or key in NOT_OPTIONS[:2]:
            names = [n for n in allowed if n not in NOT_OPTIONS]
            raise ConfigError(
                f"the plug-in {name} has no option {key!r}; it has {', '.join(names)}{nearest(key, names)}"
            )
    return name, _fit_options(name, options)


def _fit_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options as the plug-in's annotations want them; a teacher is named by its path."""
    made: Any = PLUGINS[name]
    hints = typing.get_type_hints(made.__init__) | {"teacher": str}
    fitted = {key: fit_value(v, hints[key], key, source=f"the plug-in {name}") for key, v in options.items()}
    for key, value in fitted.items():
        if isinstance(value, int | float) and not abs(value) < 2**31:  # not true of nan either
            raise ConfigError(f"the plug-in {name}: {key} = {value} was given; give a number of common size")
    return fitted


def build_model(config: ModelConfig, shape: Shape, *, seed: int) -> nn.Module:
    """Build a model for the data, load the weights it starts from, and attach its plug-ins.

    Initial weights are a function of the seed and the model alone: the same with and without plug-ins.

    Args:
        config: which model and plug-ins.
        shape: classes, channels and size of the pictures.
        seed: of the run.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _create(config, shape)
        if config.checkpoint is not None:
            load_weights(model, config.checkpoint, shape)
        torch.manual_seed(seed + 1)
        for text in config.plugins:
            name, options = parse_plugin(text)
            if name == "second_order":
                options.setdefault("num_classes", len(shape.classes))
            if name in ATTACHED:
                with _options_explained(name, options):
                    attach(model, ATTACHED[name](**options))
    return model


def build_task(
    model: nn.Module,
    config: ModelConfig,
    loss: LossConfig,
    shape: Shape,
    *,
    seed: int,
    counts: Tensor | None = None,
) -> Task:
    """Return what the model is trained for: classification, and what its plug-ins add to it.

    Args:
        model: as `build_model` returned it.
        config: which plug-ins.
        loss: class weights; smoothing is done where labels are mixed.
        shape: how the pictures are normalised, for a teacher that wants it otherwise.
        seed: of the run.
        counts: pictures of each class, for balanced weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 2)
        task: Task = Classify(model, class_weights=_class_weights(loss, counts, classes=len(shape.classes)))
        plugins = [parse_plugin(text) for text in config.plugins]
        for name, options in plugins:
            if name in TAUGHT:
                with _options_explained(name, options):
                    task = _taught(name, model, options, shape)
        for name, options in plugins:
            if name in TASKS:
                with _options_explained(name, options):
                    task = TASKS[name](task, **options)
    if config.probe:
        _freeze_all_but_classifier(model)
    return task


@contextmanager
def _options_explained(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Say which plug-in was given an option of a wrong kind."""
    try:
        yield
    except (TypeError, OverflowError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise  # says itself what is wrong
        kinds = [str(one) for one in inspect.signature(PLUGINS[name]).parameters.values() if one.name in options]
        raise ConfigError(
            f"the plug-in {name} was given {dict(options)}: {error}; it takes {', '.join(kinds)}"
        ) from error


def _taught(name: str, model: nn.Module, options: dict[str, Any], shape: Shape) -> Task:
    """Return a task whose labels come from a teacher: a finished run, or the weights one wrote."""
    options = dict(options)
    path = options.pop("teacher", None)
    if path is None and name == "distill":
        raise ConfigError("the plug-in distill needs a teacher: distill:teacher=RUN, a run's folder or its weights")
    if path is None:
        return TAUGHT[name](model, **options)
    teacher, other = load_model(path)
    if other.classes != shape.classes:
        raise ConfigError(
            f"the teacher {path} knows the classes {', '.join(other.classes[:5])}, ..., the data has "
            f"{', '.join(shape.classes[:5])}, ...; train the teacher on the same classes"
        )
    fitted: dict[str, Any] = {
        "images_norm": (shape.mean, shape.std),
        "teacher_norm": (other.mean, other.std),
        "size": None if other.img_size == shape.img_size else other.img_size,
    }
    if name == "distill":
        return TAUGHT[name](model, teacher, **fitted, **options)
    return TAUGHT[name](model, TeacherLabels(teacher, **fitted), **options)


def resolve_name(name: str) -> str:
    """Return a model's full name: `vit_tiny` stands for timm's `vit_tiny_patch16_224`."""
    for full in (name, f"{name}_patch16_224", f"{name}_patch4_window7_224"):
        if timm.is_model(full.split(".")[0]):
            return full
    return require_model(name)


def _create(config: ModelConfig, shape: Shape) -> nn.Module:
    name = resolve_name(config.name)
    options: dict[str, Any] = {"num_classes": len(shape.classes), "in_chans": shape.in_chans}
    if config.drop_path is not None:
        options["drop_path_rate"] = config.drop_path
    fitted = {"img_size": shape.img_size}
    if shape.img_size <= SMALL and "patch16" in name and "patch_size" not in config.options:
        fitted["patch_size"] = 4
        shape.notes.append(f"{name} reads patches of 4 pixels, since the pictures have {shape.img_size}")
    try:
        return timm.create_model(name, pretrained=config.pretrained, **options, **{**fitted, **config.options})
    except TypeError as error:
        if "img_size" not in str(error):  # networks of convolutions take any size and no such argument
            raise ConfigError(f"model.options = {config.options} was given for {name}: {error}") from None
    except RuntimeError as error:
        if not (config.pretrained and "No pretrained weights exist" in str(error)):
            raise
        raise ConfigError(
            f"model.pretrained was asked for and there are no weights of {name}; leave it out, or name weights by "
            "model.checkpoint"
        ) from None
    except OSError as error:  # how the hub tells of a missing network, too
        if not config.pretrained:
            raise
        raise ConfigError(
            f"the pretrained weights of {name} could not be fetched ({str(error).splitlines()[0]}); where there is no "
            "network, name a file of weights by --set model.checkpoint=FILE"
        ) from error
    return timm.create_model(name, pretrained=config.pretrained, **options, **config.options)


def save_model(path: Path, weights: Mapping[str, Tensor], config: ModelConfig, shape: Shape) -> None:
    """Write weights with what is needed to build their model and to feed it pictures."""
    allowed = constructor_options(resolve_name(config.name))  # others, such as where weights came from, build nothing
    options = {name: value for name, value in config.options.items() if name in allowed}
    about = {
        "model": {**asdict(config), "options": options, "checkpoint": None, "pretrained": False, "probe": False},
        "classes": list(shape.classes),
        "in_chans": shape.in_chans,
        "img_size": shape.img_size,
        "mean": shape.mean,
        "std": shape.std,
        "shorter": shape.shorter,
    }
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    save_tensors(path, tensors, metadata={"format": "pt", "saccade": json.dumps(about)})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file of a run whole or not at all."""
    with whole_file(path, then=f"go on by saccade train --resume {path.parent}") as draft:
        save_file(dict(tensors), draft, metadata=metadata)
        sort_header(draft)


def load_model(path: str | Path) -> tuple[nn.Module, Shape]:
    """Build a run's model with its plug-ins and weights, in evaluation mode.

    Args:
        path: a run's folder or its `model.safetensors`.

    Returns:
        The model and the shape of its pictures.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "model.safetensors"
        if not file.exists():
            raise CheckpointError(
                f"{file.parent} holds no model.safetensors; a run gets one at its end: saccade train --resume "
                f"{file.parent}"
            )
    about, weights = read_described(file)
    with described_by(file, weights):
        check_inputs(about)
        config = check_model(about["model"], resolve=resolve_name)
        shape = Shape(
            **{name: about[name] for name in ("in_chans", "img_size", "mean", "std")},
            shorter=about.get("shorter"),
            classes=tuple(about["classes"]),
        )
        model = build_model(config, shape, seed=0)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        told = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"the weights of {file} do not fit the model and classes written beside them ({told}); give the folder of "
            "the run that wrote them"
        ) from None
    return model.eval(), shape


def open_model(target: str | Path) -> tuple[nn.Module, Shape]:
    """Open a model to be asked, in evaluation mode: a run, the weights one wrote, or timm's by name with its weights.

    Args:
        target: a run's folder, its `model.safetensors`, or a name timm has pretrained weights for.

    Returns:
        The model and the shape of its pictures.
    """
    if Path(target).expanduser().exists() or not timm.is_model(str(target).split(".")[0]):
        return load_model(target)
    try:
        model: Any = timm.create_model(str(target), pretrained=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"timm's weights of {target} could not be had ({type(error).__name__}: {str(error)[:200]}); give a run's "
            "folder, or go online once so that they are kept"
        ) from None
    data = timm.data.resolve_model_data_config(model)
    size = data["input_size"][-1]
    shape = Shape(
        classes=_class_names(str(target), model.num_classes),
        in_chans=data["input_size"][0],
        img_size=size,
        mean=list(data["mean"]),
        std=list(data["std"]),
        shorter=round(size / data["crop_pct"]),
    )
    return model.eval(), shape


def open_device(name: str) -> torch.device:
    """Return a device by its name, if it can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device without memory, such as `meta`, has no number to give
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={name} was given and cannot be used ({str(error).splitlines()[0]}); try cpu"
        ) from None
    return device


def _class_names(name: str, count: int) -> tuple[str, ...]:
    """Return ImageNet's names where they are what the logits mean, else numbers."""
    subset = timm.data.infer_imagenet_subset(timm.get_pretrained_cfg(name))
    if subset is not None:
        info = timm.data.ImageNetInfo(subset)
        if info.num_classes() == count:
            return tuple(info.index_to_description(index) for index in range(count))
    return tuple(f"class {index}" for index in range(count))


def load_weights(model: nn.Module, path: str, shape: Shape) -> None:
    """Load weights to start from; a classifier for other classes is left as it is.

    Args:
        model: to fill.
        path: a run's folder, or a file of weights: ours, timm's or the published code's.
        shape: takes a note of what was left out.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "model.safetensors"
    if not file.exists():
        raise CheckpointError(f"model.checkpoint = {path} was given; there is no {file}")
    if isinstance(model, Backbone):
        report = load_official(model, file)
        shape.notes += [f"left out of {file.name}: {', '.join(report.dropped)}"] if report.dropped else []
        return
    weights = read_checkpoint(file)
    weights = _fit_positions(model, weights)
    own = model.state_dict()
    classifier = getattr(model, "default_cfg", {}).get("classifier", "head") or "head"
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    dropped = [k for k, v in weights.items() if k in own and own[k].shape != v.shape and k.startswith(heads)]
    wrong = [k for k, v in weights.items() if k in own and own[k].shape != v.shape and k not in dropped]
    missing = [k for k in own if k not in weights and not k.startswith(heads)]
    if wrong or missing:
        raise CheckpointError(
            f"{file} does not fit {type(model).__name__}: {len(missing)} weights are missing "
            f"({', '.join(missing[:3])}), {len(wrong)} have another shape ({', '.join(wrong[:3])}); name the model "
            "the weights were made for"
        )
    model.load_state_dict({k: v for k, v in weights.items() if k in own and k not in dropped}, strict=False)
    shape.notes += [f"left out of {file.name}: {', '.join(dropped)}"] if dropped else []


def _fit_positions(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm's own filter bring old names and other grids to this model's."""
    adapt = getattr(inspect.getmodule(type(model)), "checkpoint_filter_fn", None)
    return dict(adapt(weights, model)) if adapt is not None else weights


def _class_weights(loss: LossConfig, counts: Tensor | None, *, classes: int) -> Tensor | None:
    if loss.class_weights == "none":
        return None
    if loss.class_weights == "balanced":
        if counts is None:
            raise ConfigError("loss.class_weights = balanced needs to know the classes' counts; a stream does not tell")
        weights = counts.sum() / counts.clamp(min=1)
    else:
        weights = torch.tensor(loss.class_weights, dtype=torch.float64)
        if len(weights) != classes:
            raise ConfigError(f"loss.class_weights has {len(weights)} numbers, the data has {classes} classes")
    return (weights / weights.mean()).float()


def _freeze_all_but_classifier(model: Any) -> None:
    if not hasattr(model, "get_classifier"):
        raise ConfigError(f"model.probe was asked for and {type(model).__name__} does not tell its classifier")
    heads = model.get_classifier()
    heads = heads if isinstance(heads, tuple) else (heads,)
    kept = {id(p) for head in heads for p in head.parameters()}
    if not kept:
        raise ConfigError(f"model.probe was asked for and the classifier of {type(model).__name__} has no parameters")
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in kept)
