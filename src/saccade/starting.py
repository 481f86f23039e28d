"""Weights that a model starts from: recognised, fitted, and every tensor that does not fit named."""

import difflib
import inspect
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from .config import ModelConfig
from .data.spec import InputSpec
from .data.split import abbreviate
from .earlier import restore_options
from .metadata import check_inputs, check_model, read_about
from .models import CheckpointError
from .models._backbone import Backbone
from .models._identify import Unfilled, describe, resolve_name
from .models._official import adapt, read_checkpoint
from .models._published import rename_foreign
from .pretrained import find_pretrained
from .weights import find_weights, unfinished_note

SEARCH = 8.0  # seconds of this process to look for the model that a file fits better
COUNTER = "num_batches_tracked"  # that some files lack; nothing is computed from it


@dataclass
class Started:
    """What a model has from a file of weights."""

    file: Path  # the file
    parameters: set[int] = field(default_factory=set)  # ids of those that were loaded; all others are new
    # tensors of the file that had no place; plug-ins may have one for them
    rest: dict[str, Tensor] = field(default_factory=dict)
    own_classes: bool = True  # whether the file's classifier was for the data's classes


@dataclass
class Fit:
    """Tensors of a file under a model's names, and what does not fit."""

    weights: dict[str, Tensor]
    rest: dict[str, Tensor]
    missing: list[str]
    mismatched: list[str]
    dropped: list[str]
    resampled: list[str]

    @property
    def misfits(self) -> int:
        """How many tensors of the file or the model have no counterpart, classifiers aside."""
        return len(self.surplus) + len(self.missing) + len(self.mismatched)

    @property
    def surplus(self) -> list[str]:
        """Tensors of the file that the model has no place for."""
        return [key for key in self.rest if not key.endswith(COUNTER)]


def weights_file(config: ModelConfig) -> Path | None:
    """Return the file of weights that a model starts from, fetched if it has to be; None for random weights."""
    if config.checkpoint is None:
        return find_pretrained(config.name) if config.pretrained else None
    file = find_weights(config.checkpoint)
    if not file.exists():
        raise CheckpointError(f"model.checkpoint = {config.checkpoint} was given; there is no {file}")
    return file


@dataclass(frozen=True)
class Known:
    """What weights were trained with, and go on with best: size and channels of images, their scale, the geometry."""

    img_size: int
    in_chans: int
    mean: list[float]
    std: list[float]
    options: dict[str, Any]  # of the model's constructor


def known_of(config: ModelConfig, cfg: Mapping[str, Any]) -> Known | None:
    """Return what the weights that a model starts from, perhaps a run's, were trained with; None for random weights."""
    file = weights_file(config)
    if file is None:
        return None
    about, _ = restore_options(file, read_about(file))
    patches = {"patch_size": 16} if "patch16" in resolve_name(config.name) else {}  # small images get others else
    if "model" not in about:
        return Known(cfg["input_size"][-1], 3, list(cfg["mean"]), list(cfg["std"]), patches)
    try:
        check_inputs({"outputs": about.get("classes"), **about})
        spec, model = InputSpec.from_dict(about), check_model(about["model"], resolve=resolve_name)
    except (ValueError, KeyError, TypeError) as error:  # the file may be a stranger's
        raise CheckpointError(f"{file} cannot be started from: {error}") from None
    options = model.options if resolve_name(model.name) == resolve_name(config.name) else {}
    return Known(spec.img_size, spec.in_chans, list(spec.mean), list(spec.std), patches | options)


def model_of(checkpoint: str | None) -> str | None:
    """Return the name of the model that a run's weights are of; None where a file does not say so."""
    if checkpoint is None:
        return None
    model = read_about(find_weights(checkpoint)).get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) else None


def has_head(file: Path) -> bool:
    """Tell whether weights are those of a backbone with a task's head on it."""
    return file.suffix == ".safetensors" and any(name.startswith("backbone.") for name in read_checkpoint(file))


def start_from(model: nn.Module, file: Path, spec: InputSpec, *, name: str) -> Started:
    """Load the weights of a file; a classifier for other classes is left as it is.

    Args:
        model: to fill; it is changed only if the weights fit.
        file: ours, timm's, or of a published layout.
        spec: of the data; takes notes of what was resampled, left out and not found.
    """
    about, earlier = restore_options(file, read_about(file))
    spec.notes += [note for note in (unfinished_note(file, about), earlier) if note is not None]
    fit = _fit(model, read_checkpoint(file))
    if fit.missing or fit.mismatched or fit.rest:
        _refuse_misfit(model, fit, file, name=name, plugins=_plugins(about))
    heads = _heads(model)
    before = {key: value.clone() for key, value in model.state_dict().items() if _within(key, heads)}
    model.load_state_dict(fit.weights, strict=False)
    dropped, own_classes = fit.dropped, not fit.dropped
    if not dropped and any(key in fit.weights for key in before):
        dropped, own_classes = _match_classes(model, before, about, spec, file)
    if fit.resampled:
        spec.notes.append(f"resampled from {file.name} to fit: {abbreviate(fit.resampled)}")
    if dropped:
        spec.notes.append(f"left out of {file.name}, for other classes: {abbreviate(dropped)}")
    loaded = fit.weights.keys() - set(dropped)
    parameters = {id(value) for key, value in model.named_parameters() if key in loaded}
    return Started(file, parameters, fit.rest, own_classes)


def load_rest(model: nn.Module, started: Started, spec: InputSpec) -> None:
    """Fill plug-ins from what a file had beside the model's own tensors, and name what has no place even so."""
    own = model.state_dict()
    host: Any = model
    heads = host.get_classifier() if hasattr(model, "get_classifier") else ()
    heads = heads if isinstance(heads, tuple) else (heads,)
    named = dict(model.named_parameters())
    spared = set() if started.own_classes else {id(p) for head in heads for p in head.parameters()}
    placed = {
        key: value
        for key, value in started.rest.items()
        if key in own and own[key].shape == value.shape and id(named.get(key)) not in spared
    }
    model.load_state_dict(placed, strict=False)
    started.parameters |= {id(value) for key, value in model.named_parameters() if key in placed}
    surplus = [key for key in started.rest if key not in placed and not key.endswith(COUNTER)]
    if surplus:
        spec.notes.append(f"left out of {started.file.name}, without a place in the model: {abbreviate(surplus)}")


def _fit(model: nn.Module, weights: dict[str, Tensor]) -> Fit:
    """Bring weights to a model's names, grid and channels, changing nothing in the model."""
    own, heads = model.state_dict(), _heads(model)
    if isinstance(model, Backbone):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is left out is said in one place
            report = adapt(model, dict(weights), strict=False)
        rest = {key: weights[key] for key in report.unexpected if key in weights}
        return Fit(report.state_dict, rest, report.missing, [], report.dropped, report.resized)
    given = rename_foreign(weights, own)
    shapes = {key: value.shape for key, value in given.items()}
    given = _filtered(model, given)
    first = f"{_cfg(model).get('first_conv')}.weight"
    resampled = [key for key, value in given.items() if key in own and shapes.get(key, value.shape) != value.shape]
    if first in given and first in own and given[first].shape[1:2] == (3,) and own[first].shape[1] not in (3,):
        given[first] = timm.models.adapt_input_conv(own[first].shape[1], given[first])
        resampled.append(first)
    other = [key for key, value in given.items() if key in own and own[key].shape != value.shape]
    unfit = tuple(head for head in heads if any(_within(key, (head,)) for key in other))
    dropped = [key for key in given if _within(key, unfit)]
    return Fit(
        weights={key: value for key, value in given.items() if key in own and key not in (*other, *dropped)},
        rest={key: value for key, value in given.items() if key not in own and not _within(key, heads)},
        missing=[key for key in own if key not in given and not _within(key, heads) and not key.endswith(COUNTER)],
        mismatched=[key for key in other if not _within(key, heads)],
        dropped=dropped,
        resampled=resampled,
    )


def _filtered(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm's own filter bring old names and other grids to this model's."""
    filter_fn = getattr(inspect.getmodule(type(model)), "checkpoint_filter_fn", None)
    try:
        return dict(filter_fn(dict(weights), model)) if filter_fn is not None else weights
    except (KeyError, RuntimeError, IndexError, AttributeError, ValueError):
        return weights  # it takes for granted that they are this architecture's; what does not fit is told by name


def _refuse_misfit(model: nn.Module, fit: Fit, file: Path, *, name: str, plugins: str) -> None:
    """Refuse weights that lack something, and those that fit another model better."""
    if not (fit.missing or fit.mismatched) and plugins:
        return  # the surplus is the plug-ins' of the run that wrote them
    better = None
    if not isinstance(model, Backbone):
        better = _search(model, rename_foreign(read_checkpoint(file), model.state_dict()), fit.misfits, name=name)
    parts = [
        f"{len(keys)} {title}: {abbreviate(keys)}"
        for title, keys in (
            ("are missing", fit.missing),
            ("have another shape", fit.mismatched),
            ("have no place", fit.surplus),
        )
        if keys
    ]
    if better is not None:
        raise CheckpointError(
            f"{file} does not fit {name} ({'; '.join(parts)}); it fits {better}: give --model {better}, or the weights "
            f"of {name}. Nothing was loaded"
        )
    if fit.missing or fit.mismatched:
        looks = describe(read_checkpoint(file)).removesuffix(", none of saccade's")
        raise CheckpointError(
            f"{file} does not fit {name}: of its tensors {'; '.join(parts)}. They look like {looks}; name the model "
            "that the weights were made for. Nothing was loaded"
        )


def _search(model: nn.Module, weights: Mapping[str, Tensor], misfits: int, *, name: str) -> str | None:
    """Return a model of the same family that weights fit, nearly or fully, and better than this one; None if none is
    found in time."""
    base, own = name.split(".")[0], model.state_dict()
    if not timm.is_model(base) or 3 * len(own.keys() & weights.keys()) < len(weights):
        return None
    module = timm.model_entrypoint(base).__module__.rsplit(".", 1)[-1]
    names = [other for other in timm.list_models(module=module) if other != base]
    names.sort(key=lambda other: -difflib.SequenceMatcher(None, base, other).ratio())
    best, until = None, time.process_time() + SEARCH
    misfits = min(misfits, len(weights) // 10)
    for other in names:
        if time.process_time() > until or misfits == 0:
            break
        try:
            with torch.device("meta"), Unfilled():
                made = timm.create_model(other)
        except Exception:  # one that cannot be built here is not it
            continue
        heads = _heads(made)
        found = len(_shapes(made.state_dict(), heads) ^ _shapes(weights, heads))
        if found < misfits:
            best, misfits = other, found
    return best


def _shapes(tensors: Mapping[str, Tensor], heads: tuple[str, ...]) -> set[tuple[str, torch.Size]]:
    return {
        (key, value.shape) for key, value in tensors.items() if not _within(key, heads) and not key.endswith(COUNTER)
    }


def _match_classes(
    model: nn.Module, before: Mapping[str, Tensor], about: Mapping[str, Any], spec: InputSpec, file: Path
) -> tuple[list[str], bool]:
    """Bring a loaded classifier to the data's classes by their names, or put its first values back.

    Returns:
        The tensors that were left out, and whether the classifier is for the data's classes.
    """
    names, task = about.get("outputs", about.get("classes")), about.get("task", "classify")
    if not isinstance(names, list):
        if len(spec.outputs) > 1:
            spec.notes.append(
                f"{file.name} does not name its {len(spec.outputs)} classes; they are taken for the data's, in this "
                f"order: {abbreviate(spec.outputs)}"
            )
        return [], True
    if names == list(spec.outputs) and task == spec.task:
        return [], True
    own = model.state_dict()
    if sorted(map(str, names)) == sorted(spec.outputs) and task == spec.task:
        order = torch.tensor([names.index(output) for output in spec.outputs])
        with torch.no_grad():
            for key in before:
                if own[key].ndim and len(own[key]) == len(order):
                    own[key].copy_(own[key][order])
        spec.notes.append(f"the classes of {file.name} are the data's in another order; its classifier was reordered")
        return [], True
    with torch.no_grad():
        for key, value in before.items():
            own[key].copy_(value)
    spec.notes.append(f"{file.name} was trained for {abbreviate(names)}, the data is of {abbreviate(spec.outputs)}")
    return list(before), False


def _plugins(about: Mapping[str, Any]) -> str:
    model = about.get("model")
    plugins = model.get("plugins") if isinstance(model, Mapping) else None
    return ", ".join(map(str, plugins)) if isinstance(plugins, list) else ""


def _cfg(model: nn.Module) -> Mapping[str, Any]:
    cfg = getattr(model, "default_cfg", None) or {}
    return cfg if isinstance(cfg, Mapping) else vars(cfg)


def _heads(model: nn.Module) -> tuple[str, ...]:
    """Return the modules whose weights depend on the classes."""
    if isinstance(model, Backbone):
        return model.classifier
    classifier = _cfg(model).get("classifier", "head") or "head"
    return (classifier,) if isinstance(classifier, str) else tuple(classifier)


def _within(key: str, modules: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in modules)
