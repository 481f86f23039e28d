"""Weights that a model starts from: recognised, fitted, and every tensor that does not fit named."""

import copy
import difflib
import inspect
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..data.spec import InputSpec
from ..data.split import abbreviate
from ..models import CheckpointError
from ..models._backbone import Backbone
from ..models._identify import Unfilled, describe, resolve_name
from ..models._official import compare, read_checkpoint
from ..models._published import rename_foreign
from ..runs.earlier import restore_options
from ..runs.metadata import check_inputs, check_model, read_about
from ..runs.weights import find_weights, unfinished_note
from ..settings import ConfigError, ModelConfig
from ..settings.facts import Weights
from ..tasks.segmentation.pyramid import FeaturePyramid
from .classes import Classes, cfg_of, class_rows, heads_of, within
from .pretrained import find_pretrained

SEARCH = 8.0  # seconds of this process to look for the model that a file fits better
BACKBONE = "backbone."  # before the names of a backbone that has a dense task's head on it
COUNTER = "num_batches_tracked"  # that some files lack; nothing is computed from it


@dataclass
class Fit:
    """Tensors of a file under a model's names, and what does not fit."""

    given: dict[str, Tensor]  # all of them
    weights: dict[str, Tensor]  # those that fit
    rest: list[str]  # those that the model has no place for
    missing: list[str]  # those that the file lacks
    mismatched: list[str]  # those of another shape
    dropped: list[str]  # of a classifier for other classes
    resampled: list[str]


@dataclass
class Started:
    """What a model has from a file of weights."""

    file: Path  # the file, or the folder of Hugging Face
    host: nn.Module  # the model, without plug-ins and a task's head
    about: Mapping[str, Any]  # what it says of itself, unchecked
    fit: Fit  # to the host, as it is without plug-ins and a task's head
    head: dict[str, Tensor]  # of the head of a dense task that is in the file besides
    classes: Classes  # how the file's are related to the data's
    # those that were loaded, by their ids: kept, so that no other takes the id of one that a task's head needs not
    parameters: dict[int, Tensor] = field(default_factory=dict)
    own_classes: bool = True  # whether the host's classifier is the file's
    lacking: list[str] = field(default_factory=list)  # of the host, which the task of the file takes off

    @property
    def plugins(self) -> list[str]:
        """What was attached to the model in the file, as settings name it."""
        model = self.about.get("model")
        plugins = model.get("plugins") if isinstance(model, Mapping) else None
        return [str(text) for text in plugins] if isinstance(plugins, list) else []


def weights_file(config: ModelConfig) -> Path | None:
    """Return the file of weights that a model starts from, fetched if it has to be; None for random weights."""
    if config.checkpoint is None:
        return find_pretrained(config.name) if config.pretrained else None
    file = find_weights(config.checkpoint)
    if not file.exists():
        raise CheckpointError(f"model.checkpoint = {config.checkpoint} was given; there is no {file}")
    return file


def known_of(config: ModelConfig, cfg: Mapping[str, Any]) -> Weights | None:
    """Return what the weights that a model starts from, perhaps a run's, were trained with; None for random weights."""
    file = weights_file(config)
    if file is None:
        return None
    about, _ = restore_options(file, read_about(file))
    patches = {"patch_size": 16} if "patch16" in resolve_name(config.name) else {}  # small images get others else
    if "model" not in about:
        return Weights(cfg["input_size"][-1], 3, list(cfg["mean"]), list(cfg["std"]), patches)
    try:
        check_inputs({"outputs": about.get("classes"), **about})
        spec, model = InputSpec.from_dict(about), check_model(about["model"], resolve=resolve_name)
    except (ValueError, KeyError, TypeError) as error:  # the file may be a stranger's
        raise CheckpointError(f"{file} cannot be started from: {error}") from None
    options = model.options if resolve_name(model.name) == resolve_name(config.name) else {}
    return Weights(spec.img_size, spec.in_chans, list(spec.mean), list(spec.std), patches | options)


def model_of(checkpoint: str | None) -> str | None:
    """Return the name of the model that a run's weights are of; None where a file does not say so."""
    if checkpoint is None:
        return None
    model = read_about(find_weights(checkpoint)).get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) else None


def start_from(host: nn.Module, file: Path, spec: InputSpec) -> Started:
    """Load what fits of a file into a model without plug-ins; a classifier for other classes is left as it is.

    Whether the rest has a place is known when a task's head and plug-ins are on it: `transfer.py`.

    Args:
        host: to fill; timm's or ours, with its classifier.
        file: ours, timm's, or of a published layout; also a run of a dense task, of which it takes the backbone.
        spec: of the data; takes notes of what was resampled, left out and not found.
    """
    about, earlier = restore_options(file, read_about(file))
    spec.notes += [note for note in (unfinished_note(file, about), earlier) if note is not None]
    weights, head = _split_head(host, read_checkpoint(file))
    fit = _fit(host, weights)
    heads, classes = heads_of(host), Classes(about, spec, file)
    lacking: list[str] = []
    if head:
        pruned = _pruned(host)
        lacking += [key for key in host.state_dict() if key not in fit.given and (key in pruned or within(key, heads))]
        fit.missing = [key for key in fit.missing if key not in pruned]
    before = {key: value.clone() for key, value in host.state_dict().items() if within(key, heads)}
    host.load_state_dict(fit.weights, strict=False)
    dropped = fit.dropped
    loaded = [key for key in before if key in fit.weights]
    if loaded:
        dropped = dropped + classes.match(host, before, class_rows(host, loaded, len(spec.outputs)))
    if fit.resampled:
        spec.notes.append(f"resampled from {file.name} to fit: {abbreviate(fit.resampled)}")
    if dropped:
        spec.notes.append(f"left out of {file.name}, for other classes: {abbreviate(dropped)}")
    parameters: dict[int, Tensor] = {
        id(v): v for key, v in host.named_parameters() if key in fit.weights and key not in dropped
    }
    own_classes = bool(loaded) and not dropped
    return Started(file, host, about, fit, head, classes, parameters, own_classes=own_classes, lacking=lacking)


def _split_head(host: nn.Module, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of a backbone, and those of a dense task's head that they are written with."""
    if not any(key.startswith(BACKBONE) for key in weights) or any(
        key.startswith(BACKBONE) for key in host.state_dict()
    ):
        return weights, {}
    inner = {key.removeprefix(BACKBONE): value for key, value in weights.items() if key.startswith(BACKBONE)}
    return inner, {key: value for key, value in weights.items() if not key.startswith(BACKBONE)}


def _pruned(host: nn.Module) -> set[str]:
    """Return what a dense task takes off a backbone, so that its runs lack it."""
    try:
        with torch.random.fork_rng(devices=[]):
            bare = copy.deepcopy(host)
            FeaturePyramid(bare)
    except ConfigError:
        return set()
    return host.state_dict().keys() - bare.state_dict().keys()


def _fit(model: nn.Module, weights: dict[str, Tensor]) -> Fit:
    """Bring weights to a model's names, grid and channels, changing nothing in the model."""
    own, heads = model.state_dict(), heads_of(model)
    if isinstance(model, Backbone):
        given, dropped, resampled = _converted(model, weights)
    else:
        given, dropped, resampled = _renamed(model, weights, heads)
    left = {key for key, value in given.items() if key in own and own[key].shape != value.shape}
    # A file may have no classifier, or another in its place, and one for other classes is left out.
    spared = heads if dropped or not isinstance(model, Backbone) or not any(within(key, heads) for key in given) else ()
    return Fit(
        given=given,
        weights={key: value for key, value in given.items() if key in own and key not in left and key not in dropped},
        rest=[key for key in given if key not in own and not within(key, spared)],
        missing=[key for key in own if key not in given and not within(key, spared) and not key.endswith(COUNTER)],
        mismatched=[key for key in given if key in left and not within(key, spared)],
        dropped=dropped,
        resampled=resampled,
    )


def _converted(model: Backbone, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Return weights by the names of one of our models, those of a classifier left out, and those resampled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is left out is said in one place
        report = compare(model, dict(weights))
    return report.state_dict, report.dropped, report.resized


def _renamed(
    model: nn.Module, weights: dict[str, Tensor], heads: tuple[str, ...]
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Return the same for a model of timm."""
    own = model.state_dict()
    given = rename_foreign(weights, own)
    shapes = {key: value.shape for key, value in given.items()}
    given = _filtered(model, given)
    resampled = [key for key, value in given.items() if key in own and shapes.get(key, value.shape) != value.shape]
    first = f"{cfg_of(model).get('first_conv')}.weight"
    if first in given and first in own and given[first].shape[1:2] == (3,) and own[first].shape[1] not in (3,):
        given[first] = timm.models.adapt_input_conv(own[first].shape[1], given[first])
        resampled.append(first)
    other = [key for key, value in given.items() if key in own and own[key].shape != value.shape]
    unfit = tuple(head for head in heads if any(within(key, (head,)) for key in other))
    return given, [key for key in given if within(key, unfit)], resampled


def _filtered(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm's own filter bring old names and other grids to this model's."""
    filter_fn = getattr(inspect.getmodule(type(model)), "checkpoint_filter_fn", None)
    try:
        return dict(filter_fn(dict(weights), model)) if filter_fn is not None else weights
    except (KeyError, RuntimeError, IndexError, AttributeError, ValueError):
        return weights  # it takes for granted that they are this architecture's; what does not fit is told by name


def refuse_misfit(started: Started, lost: Mapping[str, list[str]], *, name: str) -> None:
    """Refuse weights that lack something, and those that fit another model better.

    Args:
        lost: "missing", "mismatched" and "surplus" tensors, with plug-ins where there are any.
    """
    file, host, weights = started.file, started.host, read_checkpoint(started.file)
    better, misfits = None, sum(map(len, lost.values()))
    if not isinstance(host, Backbone) and misfits:
        better = _search(host, rename_foreign(weights, host.state_dict()), misfits, name=name)
    if better is not None:
        raise CheckpointError(
            f"{file} does not fit {name} ({list_misfits(lost)}); it fits {better}: give --model {better}, or the "
            f"weights of {name}. Nothing was loaded"
        )
    if lost["missing"] or lost["mismatched"]:
        looks = describe(weights).removesuffix(", none of saccade's")
        raise CheckpointError(
            f"{file} does not fit {name}: of its tensors {list_misfits(lost)}. They look like {looks}; name the model "
            "that the weights were made for. Nothing was loaded"
        )


def list_misfits(lost: Mapping[str, list[str]]) -> str:
    """Return in words which tensors are missing, of another shape, or without a place."""
    titles = {"missing": "are missing", "mismatched": "have another shape", "surplus": "have no place"}
    return "; ".join(
        f"{len(lost[kind])} {title}: {abbreviate(lost[kind])}" for kind, title in titles.items() if lost[kind]
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
        heads = heads_of(made)
        found = len(_shapes(made.state_dict(), heads) ^ _shapes(weights, heads))
        if found < misfits:
            best, misfits = other, found
    return best


def _shapes(tensors: Mapping[str, Tensor], heads: tuple[str, ...]) -> set[tuple[str, torch.Size]]:
    return {
        (key, value.shape) for key, value in tensors.items() if not within(key, heads) and not key.endswith(COUNTER)
    }
