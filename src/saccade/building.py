"""From settings to a model with its plug-ins, and to the task it is trained for."""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from .config import ConfigError, LossConfig, ModelConfig
from .data.spec import InputSpec
from .metadata import check_inputs, check_model, described_by, read_about, read_described
from .models import CheckpointError, load_official
from .models._backbone import Backbone
from .models._builder import SMALL_SIDE
from .models._identify import resolve_name
from .models._official import read_checkpoint
from .plugins import PLUGINS, attach
from .pretrained import PREFIX, class_words, match_classes, open_timm
from .registry import option_hints, parse_options
from .tasks import Distillation, LabelMaps, Task, TeacherLabels, TokenLabelling
from .tasks.opening import TaskChoice, find_task
from .weights import find_weights, unfinished_note

GIVEN_HERE = ("model", "task")  # what plug-ins are given here
TEACHER_TASKS = (Distillation, TokenLabelling)  # in the place of plain classification


def parse_plugin(text: str) -> tuple[str, dict[str, Any]]:
    """Read "name" or "name:option=value,option=value"; a teacher and label maps are named by their paths."""
    return parse_options(text, PLUGINS, given_here=GIVEN_HERE, typed={"teacher": str, "maps": str})


def build_model(config: ModelConfig, spec: InputSpec, *, seed: int) -> nn.Module:
    """Build a model for the data, load the weights it starts from, and attach its plug-ins.

    Initial weights are a function of the seed and the model alone: the same with and without plug-ins.

    Args:
        config: which model and plug-ins.
        spec: outputs, channels and size of the images.
        seed: of the run.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _create(config, spec)
        whole = config.checkpoint is not None and _has_head(config.checkpoint)
        if config.checkpoint is not None and not whole:
            load_weights(model, config.checkpoint, spec)
        model = find_task(spec.task).add_head(model, config, spec)
        if config.checkpoint is not None and whole:
            load_weights(model, config.checkpoint, spec)
        torch.manual_seed(seed + 1)
        for text in config.plugins:
            name, options = parse_plugin(text)
            made = PLUGINS[name]
            if not is_task(made):
                if "num_classes" in option_hints(made):
                    options.setdefault("num_classes", find_task(spec.task).num_outputs(spec))
                with _options_explained(name, options):
                    attach(model, made(**options))
    return model


def build_task(
    model: nn.Module,
    choice: TaskChoice,
    config: ModelConfig,
    loss: LossConfig,
    spec: InputSpec,
    *,
    seed: int,
    counts: Tensor | None = None,
    total: int | None = None,
) -> Task:
    """Return what the model is trained for: the task, and what the model's plug-ins add to it.

    Args:
        model: as `build_model` returned it.
        choice: the task.
        config: which plug-ins.
        loss: what is asked of the answers.
        spec: what goes in and comes out.
        seed: of the run.
        counts: training samples that speak of each output, where they are known.
        total: training samples, where they are known.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 2)
        task = choice.kind.build(model, spec, options=choice.options, loss=loss, counts=counts, total=total)
        plugins = [(name, options) for name, options in map(parse_plugin, config.plugins) if is_task(PLUGINS[name])]
        for name, options in plugins:
            made = PLUGINS[name]
            if issubclass(made, TEACHER_TASKS):
                if not issubclass(made, choice.kind):
                    raise ConfigError(f"the plug-in {name} learns classes from a teacher; the task is {choice}")
                with _options_explained(name, options):
                    task = _taught(name, model, options, spec)
                    task.spec = spec
        for name, options in plugins:
            made = PLUGINS[name]
            if not issubclass(made, TEACHER_TASKS):
                with _options_explained(name, options):
                    task = made(task, **options)
    if config.probe:
        _freeze_all_but_classifier(model)
    return task


def is_task(made: Any) -> bool:
    """Tell whether a plug-in is a task around another one or in its place, and not something put onto the model."""
    return isinstance(made, type) and issubclass(made, Task)


@contextmanager
def _options_explained(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Say which plug-in was given an option of a wrong kind."""
    try:
        yield
    except (TypeError, OverflowError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise  # says itself what is wrong
        hints = option_hints(PLUGINS[name])
        kinds = [f"{key}: {getattr(hints[key], '__name__', hints[key])}" for key in options]
        raise ConfigError(
            f"the plug-in {name} was given {dict(options)}: {error}; it takes {', '.join(kinds)}"
        ) from error


def _taught(name: str, model: nn.Module, options: dict[str, Any], spec: InputSpec) -> Task:
    """Return a task whose labels come from a teacher, or from the maps one made."""
    options, made = dict(options), PLUGINS[name]
    path, maps = options.pop("teacher", None), options.pop("maps", None)
    if path is None and name == "distill":
        raise ConfigError(
            "the plug-in distill needs a teacher: distill:teacher=RUN, a run's folder or its weights, or "
            "distill:teacher=timm:NAME"
        )
    if maps is not None:
        options["maps"] = LabelMaps(maps).checked(spec.outputs)
    if path is None:
        return made(model, **options)
    teacher, other, known = open_teacher(path)
    if other.task != spec.task or other.in_chans != spec.in_chans:
        raise ConfigError(
            f"the teacher {path} was trained for the task {other.task} on images of {other.in_chans} channels; the "
            f"data is for {spec.task}, with {spec.in_chans}: give a teacher of such data"
        )
    fitted: dict[str, Any] = {
        "images_norm": (spec.mean, spec.std),
        "teacher_norm": (other.mean, other.std),
        "size": None if other.img_size == spec.img_size else other.img_size,
        "classes": match_classes(spec.outputs, known, teacher=path),
    }
    if name == "distill":
        return made(model, teacher, **fitted, **options)
    return made(model, TeacherLabels(teacher, **fitted), **options)


def open_teacher(path: str) -> tuple[nn.Module, InputSpec, list[list[str]]]:
    """Return a teacher, what goes in and comes out, and all names of each of its classes.

    Args:
        path: a run's folder or its weights; `timm:NAME`, or `timm:NAME@FILE` with its weights in safetensors.
    """
    target = path.removeprefix(PREFIX)
    if target == path:
        model, spec = load_model(path)
        return model, spec, [[label] for label in spec.outputs]
    model, spec = open_timm(target)
    return model, spec, class_words(target.partition("@")[0], len(spec.outputs))


def _create(config: ModelConfig, spec: InputSpec) -> nn.Module:
    if (made := find_task(spec.task).create_model(config, spec)) is not None:
        return made
    name = resolve_name(config.name)
    outputs = find_task(spec.task).num_outputs(spec)
    options: dict[str, Any] = {"num_classes": outputs, "in_chans": spec.in_chans}
    if config.drop_path is not None:
        options["drop_path_rate"] = config.drop_path
    more = find_task(spec.task).model_options(name, spec)
    fitted: dict[str, Any] = {"img_size": spec.img_size}
    if spec.img_size <= SMALL_SIDE and "patch16" in name and "patch_size" not in config.options:  # or little is left
        fitted["patch_size"] = 4
        spec.notes.append(f"{name} reads patches of 4 pixels, since the pictures have {spec.img_size}")
    try:
        return timm.create_model(name, pretrained=config.pretrained, **options, **{**fitted, **more, **config.options})
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
    more = {option: value for option, value in more.items() if option != "img_size"}
    return timm.create_model(name, pretrained=config.pretrained, **options, **{**more, **config.options})


def load_model(path: str | Path) -> tuple[nn.Module, InputSpec]:
    """Build a run's model with its plug-ins and weights, in evaluation mode.

    Args:
        path: a run's folder or its `model.safetensors`.

    Returns:
        The model, and what goes in and comes out.
    """
    file = find_weights(path)
    about, weights = read_described(file)
    note = unfinished_note(file, about)
    with described_by(file, weights):
        check_inputs(about)
        spec = InputSpec.from_dict(about)
        kind = find_task(spec.task)
        config = check_model(about["model"], resolve=None if kind.own_models else resolve_name)
        kind.check_spec(spec)
        if "task" not in about:  # an earlier version's, which sized second-order heads by the tokens' width
            config = replace(config, plugins=[_as_before(text) for text in config.plugins])
        model = build_model(config, spec, seed=0)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"the weights of {file} do not fit the model and classes written beside them ({detail}); give the folder "
            "of the run that wrote them"
        ) from None
    if note is not None:
        spec.notes.append(note)
        warnings.warn(note, stacklevel=2)
    return model.eval(), spec


def _as_before(text: str) -> str:
    name, options = parse_plugin(text)
    if name != "second_order" or "head_dim" in options:
        return text
    return f"{text}{',' if ':' in text else ':'}head_dim=width"


def load_weights(model: nn.Module, path: str, spec: InputSpec) -> None:
    """Load weights to start from; a classifier for other classes is left as it is.

    Args:
        model: to fill.
        path: a run's folder, or a file of weights: ours, timm's or the published code's.
        spec: takes a note of what was left out.
    """
    file = find_weights(path)
    if not file.exists():
        raise CheckpointError(f"model.checkpoint = {path} was given; there is no {file}")
    note = unfinished_note(file, read_about(file))
    spec.notes += [note] if note is not None else []
    if isinstance(model, Backbone):
        report = load_official(model, file)
        spec.notes += [f"left out of {file.name}: {', '.join(report.dropped)}"] if report.dropped else []
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
    spec.notes += [f"left out of {file.name}: {', '.join(dropped)}"] if dropped else []


def _has_head(path: str) -> bool:
    """Tell whether weights to start from are those of a backbone with a task's head on it."""
    file = Path(path).expanduser()
    file = file / "model.safetensors" if file.is_dir() else file
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    return any(name.startswith("backbone.") for name in read_checkpoint(file))


def _fit_positions(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm's own filter bring old names and other grids to this model's."""
    adapt = getattr(inspect.getmodule(type(model)), "checkpoint_filter_fn", None)
    return dict(adapt(weights, model)) if adapt is not None else weights


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
