"""Build a model with its plug-ins, and its task, from settings."""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..data.spec import InputSpec
from ..data.targets import Counts
from ..models import CheckpointError
from ..models._identify import resolve_name
from ..plugins import PLUGINS, LoRA, attach, attached
from ..plugins.trained import new_parameters, zero_new_classifier
from ..runs.earlier import restore_options
from ..runs.metadata import check_inputs, check_model, described_by, read_described
from ..runs.weights import find_weights, unfinished_note
from ..settings import ConfigError, LossConfig, ModelConfig
from ..settings.registry import option_hints, parse_options
from ..settings.sizes import SMALL_SIDE
from ..tasks import Distillation, LabelMaps, Task, TeacherLabels, TokenLabelling
from ..tasks.hosts import PREFIX as HOSTED
from ..tasks.opening import TaskChoice, find_task
from ..tasks.text.opening import open_hosted
from .checkpoint import start_from, weights_file
from .freezing import freeze_all_but_classifier, freeze_lower
from .pretrained import PREFIX, class_words, find_specification, match_classes, open_timm
from .transfer import WeightTransfer, start_from_folder

GIVEN_HERE = ("model", "task")  # arguments that plug-ins get here
TEACHER_TASKS = (Distillation, TokenLabelling)  # these replace plain classification


def parse_plugin(text: str) -> tuple[str, dict[str, Any]]:
    """Parse "name" or "name:option=value,option=value"; teachers and label maps are paths."""
    return parse_options(text, PLUGINS, given_here=GIVEN_HERE, typed={"teacher": str, "maps": str})


def build_model(config: ModelConfig, spec: InputSpec, *, seed: int) -> nn.Module:
    """Build a model, load its initial weights, and attach its plug-ins.

    Random initial weights only depend on the seed and the model, not on plug-ins.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = find_task(spec.task)
        # before building, since it may be missing
        file = None if kind.hosts.builds(config.name) else weights_file(config)
        host = _create(config, spec)
        started = None if file is None else start_from(host, file, spec)
        if kind.hosts.builds(config.name) and config.pretrained and not spec.extra.get("scratch"):
            started = start_from_folder(host, config.name, spec)
        model = kind.hosts.add_head(host, config, spec)
        carrying = None if started is None else WeightTransfer(started, model, spec)
        torch.manual_seed(seed + 1)
        for text in config.plugins:
            name, options = parse_plugin(text)
            made = PLUGINS[name]
            if not is_task(made):
                if "num_classes" in option_hints(made):
                    options.setdefault("num_classes", len(spec.outputs))
                carried = nullcontext() if carrying is None else carrying.attaching(text)
                with _options_explained(name, options), carried:
                    attach(model, made(**options))
    if carrying is not None:
        carrying.finish(name=config.name)
    if started is not None and file is not None:
        model.new_parameters = new_parameters(model, set(started.parameters))  # type: ignore[assignment]
        zero_new_classifier(model)
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
    """Build the task of a model, including plug-ins that wrap or replace it.

    Args:
        counts: numbers of training samples for each output, if known.
        total: number of training samples, if known.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 2)
        plugins = [(name, options) for name, options in map(parse_plugin, config.plugins) if is_task(PLUGINS[name])]
        taught = [plugin for plugin in plugins if issubclass(PLUGINS[plugin[0]], TEACHER_TASKS)]
        if taught:
            task = _taught(taught, model, choice, spec, loss, Counts(counts, total))
        else:
            task = choice.kind.build(model, spec, options=choice.options, loss=loss, counts=counts, total=total)
        for name, options in plugins:
            if (name, options) not in taught:
                with _options_explained(name, options):
                    task = PLUGINS[name](task, **options)
    if (config.probe or config.freeze) and any(isinstance(handle.plugin, LoRA) for handle in attached(model)):
        raise ConfigError(
            f"model.{'probe' if config.probe else 'freeze'} was given with the plug-in lora, which freezes the model "
            "itself and trains adapters in all of its blocks; remove one of the two"
        )
    if config.probe:
        freeze_all_but_classifier(model)
    elif config.freeze:
        freeze_lower(model, config.freeze)
    return task


def is_task(made: Any) -> bool:
    """Whether a plug-in is a task, and not attached to the model."""
    return isinstance(made, type) and issubclass(made, Task)


@contextmanager
def _options_explained(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Add the plug-in's name to errors of its options."""
    try:
        yield
    except (TypeError, OverflowError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise  # already a complete message
        hints = option_hints(PLUGINS[name])
        kinds = [f"{key}: {getattr(hints[key], '__name__', hints[key])}" for key in options]
        raise ConfigError(
            f"the plug-in {name} does not accept {dict(options)}: {error}; expected {', '.join(kinds)}"
        ) from error


def _taught(
    plugins: list[tuple[str, dict[str, Any]]],
    model: nn.Module,
    choice: TaskChoice,
    spec: InputSpec,
    loss: LossConfig,
    counts: Counts,
) -> Task:
    """Build the task that learns from a teacher or its label maps, instead of the plain one."""
    (name, options), made = plugins[0], PLUGINS[plugins[0][0]]
    if len(plugins) > 1:
        names = ", ".join(other for other, _ in plugins)
        raise ConfigError(
            f"the plug-ins {names} cannot be combined: a model learns from one teacher; keep only one of them"
        )
    if not issubclass(made, choice.kind):
        raise ConfigError(f"the plug-in {name} learns classes from a teacher and does not support the task {choice}")
    settings = choice.kind.arguments(spec, choice.options, loss, counts)
    with _options_explained(name, options):
        task: Task = made(model, **{**settings, **_labels(name, options, spec)})
    task.spec, task.primary = spec, choice.kind.metrics.primary_of(spec)
    if loss.smoothing and isinstance(task, TokenLabelling) and not task.learns_targets:
        spec.notes.append(
            f"loss.smoothing = {loss.smoothing:g} has no effect: the labels are the teacher's, smoothed by "
            f"{name}:smoothing={task.smoothing:g}"
        )
    return task


def _labels(name: str, options: dict[str, Any], spec: InputSpec) -> dict[str, Any]:
    """Return a teacher plug-in's options, with its teacher or label maps opened."""
    options = dict(options)
    path, maps = options.pop("teacher", None), options.pop("maps", None)
    if path is None and name == "distill":
        raise ConfigError(
            "the plug-in distill needs a teacher: distill:teacher=RUN (a run directory or its weights) or "
            "distill:teacher=timm:NAME"
        )
    if maps is not None:
        options["maps"] = LabelMaps(maps).checked(spec.outputs)
    if path is None:
        return options
    teacher, other, known = open_teacher(path)
    if other.task != spec.task or other.in_chans != spec.in_chans:
        raise ConfigError(
            f"the teacher {path} was trained for the task {other.task} on images with {other.in_chans} channels; the "
            f"dataset is for {spec.task}, with {spec.in_chans}: give a teacher trained for this task and number of "
            "channels"
        )
    fitted: dict[str, Any] = {
        "images_norm": (spec.mean, spec.std),
        "teacher_norm": (other.mean, other.std),
        "size": None if other.img_size == spec.img_size else other.img_size,
        "classes": match_classes(spec.outputs, known, teacher=path),
    }
    if name == "distill":
        return {"teacher": teacher, **fitted, **options}
    return {"teacher": TeacherLabels(teacher, **fitted), **options}


def open_teacher(path: str) -> tuple[nn.Module, InputSpec, list[list[str]]]:
    """Open a teacher; return it, its specification, and all names of its classes.

    Args:
        path: run folder or weights; `timm:NAME`, or NAME@FILE, see `open_timm`.
    """
    named = find_specification(path)
    if named is None and not path.startswith(PREFIX):
        model, spec = load_model(path)
        return model, spec, [[label] for label in spec.outputs]
    named = named or path.removeprefix(PREFIX)  # raises if it is not a model
    model, spec = open_timm(named)
    return model, spec, class_words(re.split("[:@]", named)[0], len(spec.outputs))


def _create(config: ModelConfig, spec: InputSpec) -> nn.Module:
    if (made := find_task(spec.task).hosts.create_model(config, spec)) is not None:
        return made
    name = resolve_name(config.name)
    outputs = len(spec.outputs)
    options: dict[str, Any] = {"num_classes": outputs, "in_chans": spec.in_chans}
    if config.drop_path is not None:
        options["drop_path_rate"] = config.drop_path
    more = find_task(spec.task).hosts.model_options(name, spec)
    fitted: dict[str, Any] = {"img_size": spec.img_size}
    own_patches = config.checkpoint is None and not config.pretrained and "patch_size" not in config.options
    if spec.img_size <= SMALL_SIDE and "patch16" in name and own_patches:  # patches of 16 pixels are too large
        fitted["patch_size"] = 4
        spec.notes.append(f"{name} uses a patch size of 4 pixels, because the image size is {spec.img_size}")
    try:
        return timm.create_model(name, **options, **{**fitted, **more, **config.options})
    except TypeError as error:
        if "img_size" not in str(error):  # convolutional networks take any size, without this argument
            raise ConfigError(f"model.options = {config.options} does not fit {name}: {error}") from None
    more = {option: value for option, value in more.items() if option != "img_size"}
    return timm.create_model(name, **options, **{**more, **config.options})


def load_model(path: str | Path) -> tuple[nn.Module, InputSpec]:
    """Load a run's model with its plug-ins, or a model by name, with weights and in evaluation mode.

    Args:
        path: run folder or `model.safetensors`; NAME, timm:NAME or NAME@FILE, see `open_timm`; or hf:NAME, see
            `open_hosted`.

    Returns:
        The model and its input specification.
    """
    if str(path).startswith(HOSTED):
        return open_hosted(str(path))
    if (named := find_specification(path)) is not None:
        return open_timm(named)
    file = find_weights(path)
    about, weights = read_described(file)
    about, earlier = restore_options(file, about)
    remarks = [note for note in (unfinished_note(file, about), earlier) if note is not None]
    with described_by(file, weights):
        check_inputs(about)
        spec = InputSpec.from_dict(about)
        kind = find_task(spec.task)
        own = isinstance(about["model"], Mapping) and kind.hosts.builds(str(about["model"].get("name")))
        config = check_model(about["model"], resolve=None if own else resolve_name)
        kind.check_spec(spec)
        model = build_model(config, spec, seed=0)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"the weights in {file} do not match the model and classes recorded with them ({detail}); give the "
            "directory of the run that wrote them"
        ) from None
    for note in remarks:
        spec.notes.append(note)
        warnings.warn(note, stacklevel=2)
    return model.eval(), spec
