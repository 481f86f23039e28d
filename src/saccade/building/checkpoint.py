"""Load initial weights: detect the layout, adapt tensors, and report those that do not fit."""

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

SEARCH = 8.0  # seconds of CPU time to search for a better fitting model
BACKBONE = "backbone."  # prefix of a backbone inside a dense model
COUNTER = "num_batches_tracked"  # buffer that some files lack, and that has no effect


@dataclass
class Fit:
    """Tensors of a file under a model's names, and mismatches."""

    given: dict[str, Tensor]  # all tensors
    weights: dict[str, Tensor]  # tensors that fit
    rest: list[str]  # names that the model lacks
    missing: list[str]  # names that the file lacks
    mismatched: list[str]  # names with other shapes
    dropped: list[str]  # tensors of a classifier for other classes
    resampled: list[str]


@dataclass
class Started:
    """A model's state after loading a file of weights."""

    file: Path  # the file, or the Hugging Face folder
    host: nn.Module  # the model, without plug-ins and task head
    about: Mapping[str, Any]  # the file's metadata, unchecked
    fit: Fit  # result for the model without plug-ins and task head
    head: dict[str, Tensor]  # tensors of a dense task's head in the file
    classes: Classes  # relation of the file's classes to the data's
    # loaded parameters by id; the references keep ids unique
    parameters: dict[int, Tensor] = field(default_factory=dict)
    own_classes: bool = True  # whether the model's classifier is the file's
    lacking: list[str] = field(default_factory=list)  # tensors that the file's task removes from the model

    @property
    def plugins(self) -> list[str]:
        """The plug-ins of the file's model, as in settings."""
        model = self.about.get("model")
        plugins = model.get("plugins") if isinstance(model, Mapping) else None
        return [str(text) for text in plugins] if isinstance(plugins, list) else []


def weights_file(config: ModelConfig) -> Path | None:
    """Return the file of initial weights, downloaded if needed; None for random weights."""
    if config.checkpoint is None:
        return find_pretrained(config.name) if config.pretrained else None
    file = find_weights(config.checkpoint)
    if not file.exists():
        raise CheckpointError(f"model.checkpoint = {config.checkpoint}: no such file {file}")
    return file


def known_of(config: ModelConfig, cfg: Mapping[str, Any]) -> Weights | None:
    """Return the settings that the initial weights were trained with; None for random weights."""
    file = weights_file(config)
    if file is None:
        return None
    about, _ = restore_options(file, read_about(file))
    patches = (
        {"patch_size": 16} if "patch16" in resolve_name(config.name) else {}
    )  # otherwise small images get smaller patches
    if "model" not in about:
        return Weights(cfg["input_size"][-1], 3, list(cfg["mean"]), list(cfg["std"]), patches)
    try:
        check_inputs({"outputs": about.get("classes"), **about})
        spec, model = InputSpec.from_dict(about), check_model(about["model"], resolve=resolve_name)
    except (ValueError, KeyError, TypeError) as error:  # the file may be untrusted
        raise CheckpointError(f"{file} cannot be used as initial weights: {error}") from None
    options = model.options if resolve_name(model.name) == resolve_name(config.name) else {}
    return Weights(spec.img_size, spec.in_chans, list(spec.mean), list(spec.std), patches | options)


def model_of(checkpoint: str | None) -> str | None:
    """Return the model name in a file of weights, if there is one."""
    if checkpoint is None:
        return None
    model = read_about(find_weights(checkpoint)).get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) else None


def start_from(host: nn.Module, file: Path, spec: InputSpec) -> Started:
    """Load the fitting tensors of a file into a model without plug-ins; classifiers for other classes are not loaded.

    The remaining tensors are handled when task head and plug-ins are added, see `transfer.py`.

    Args:
        host: the model, of timm or saccade, with its classifier.
        file: a file of saccade or timm, or of a published layout; of dense models, the backbone is used.
        spec: the data's specification, which collects notes.
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
        spec.notes.append(f"resampled from {file.name} to the model's size: {abbreviate(fit.resampled)}")
    if dropped:
        spec.notes.append(f"not loaded from {file.name} (other classes): {abbreviate(dropped)}")
    parameters: dict[int, Tensor] = {
        id(v): v for key, v in host.named_parameters() if key in fit.weights and key not in dropped
    }
    own_classes = bool(loaded) and not dropped
    return Started(file, host, about, fit, head, classes, parameters, own_classes=own_classes, lacking=lacking)


def _split_head(host: nn.Module, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split weights into those of a backbone and of a dense task's head."""
    if not any(key.startswith(BACKBONE) for key in weights) or any(
        key.startswith(BACKBONE) for key in host.state_dict()
    ):
        return weights, {}
    inner = {key.removeprefix(BACKBONE): value for key, value in weights.items() if key.startswith(BACKBONE)}
    return inner, {key: value for key, value in weights.items() if not key.startswith(BACKBONE)}


def _pruned(host: nn.Module) -> set[str]:
    """Return the tensors that a dense task removes from a backbone."""
    try:
        with torch.random.fork_rng(devices=[]):
            bare = copy.deepcopy(host)
            FeaturePyramid(bare)
    except ConfigError:
        return set()
    return host.state_dict().keys() - bare.state_dict().keys()


def _fit(model: nn.Module, weights: dict[str, Tensor]) -> Fit:
    """Adapt weights to a model's names, grid and channels, without changing the model."""
    own, heads = model.state_dict(), heads_of(model)
    if isinstance(model, Backbone):
        given, dropped, resampled = _converted(model, weights)
    else:
        given, dropped, resampled = _renamed(model, weights, heads)
    left = {key for key, value in given.items() if key in own and own[key].shape != value.shape}
    # The file may lack the classifier or have another one; classifiers for other classes are dropped.
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
    """Convert weights to the names of saccade's models; return them, dropped classifier tensors, and resampled ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reported in one place
        report = compare(model, dict(weights))
    return report.state_dict, report.dropped, report.resized


def _renamed(
    model: nn.Module, weights: dict[str, Tensor], heads: tuple[str, ...]
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Convert weights to the names of a timm model, likewise."""
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
    """Apply timm's checkpoint filter, which converts old names and other grids."""
    filter_fn = getattr(inspect.getmodule(type(model)), "checkpoint_filter_fn", None)
    try:
        return dict(filter_fn(dict(weights), model)) if filter_fn is not None else weights
    except (KeyError, RuntimeError, IndexError, AttributeError, ValueError):
        return weights  # the filter assumes this architecture; mismatches are reported by name


def refuse_misfit(started: Started, lost: Mapping[str, list[str]], *, name: str) -> None:
    """Refuse incomplete weights, and those that fit another model better.

    Args:
        lost: "missing", "mismatched" and "surplus" tensors, including plug-ins.
    """
    file, host, weights = started.file, started.host, read_checkpoint(started.file)
    better, misfits = None, sum(map(len, lost.values()))
    if not isinstance(host, Backbone) and misfits:
        better = _search(host, rename_foreign(weights, host.state_dict()), misfits, name=name)
    if better is not None:
        raise CheckpointError(
            f"{file} does not fit {name} ({list_misfits(lost)}); it fits {better}: use --model {better}, or weights "
            f"of {name}. Nothing was loaded"
        )
    if lost["missing"] or lost["mismatched"]:
        looks = describe(weights).removesuffix(", none of saccade's")
        raise CheckpointError(
            f"{file} does not fit {name}: {list_misfits(lost)}. The weights look like {looks}; choose the model that "
            "they were made for. Nothing was loaded"
        )


def list_misfits(lost: Mapping[str, list[str]]) -> str:
    """Describe missing, mismatched and surplus tensors."""
    titles = {"missing": "missing", "mismatched": "of another shape", "surplus": "not in the model"}
    return "; ".join(
        f"{len(lost[kind])} tensor{'s' * (len(lost[kind]) != 1)} {title}: {abbreviate(lost[kind])}"
        for kind, title in titles.items()
        if lost[kind]
    )


def _search(model: nn.Module, weights: Mapping[str, Tensor], misfits: int, *, name: str) -> str | None:
    """Return a model of the same family that the weights fit better; None if none is found in time."""
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
        except Exception:  # skip models that cannot be built
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
