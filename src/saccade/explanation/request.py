"""Requests for views, the registry of views, and checks of requests."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from ..building.loading import LoadedModel
from ..settings.registry import Registry
from ..tasks import Answer
from .capture import Captured
from .recording import Recorded
from .view import View

Heads = Literal["mean", "all"] | Sequence[int]
Estimator = Literal["unbiased", "biased"]
Method = Literal["gradient", "integrated", "relevance", "lime"]  # for the influence of words


@dataclass(frozen=True)
class Options:
    """Options of views: see `explain`."""

    layers: Sequence[str] | None = None
    block: int | str | None = None
    epochs: Sequence[int] | None = None
    heads: Heads = "mean"
    estimator: Estimator = "unbiased"
    method: Method = "gradient"


@dataclass(frozen=True)
class ViewRequest:
    """A batch of samples and the model's outputs, from which views are made.

    Args:
        model: the model to explain.
        count: number of samples.
        options: the user's options.
        captured: attention of the requested layers, and the model's output.
        recorded: outputs of the taps of all views.
        loaded: the opened model; None for texts.
        images: model inputs, B, C, H, W; None for texts.
        pixels: the images, each H, W, 3 uint8.
        answers: the model's answers.
        other: the model to compare with.
        samples: images for CKA, H, W, 3 each.
        inputs: model inputs of a text; the batch of a question.
        tokenizer: Hugging Face tokenizer, for texts.
        classes: names of the model's outputs, if known.
        shared: storage of views between batches.
    """

    model: nn.Module
    count: int
    options: Options = Options()
    captured: Captured = field(default_factory=Captured)
    recorded: Recorded = field(default_factory=dict)
    loaded: LoadedModel | None = None
    images: Tensor | None = None
    pixels: Sequence[np.ndarray] = ()
    answers: Sequence[Answer | None] = ()
    other: LoadedModel | None = None
    samples: Sequence[np.ndarray] = ()
    inputs: Any = None
    tokenizer: Any = None
    classes: Sequence[str] | None = None
    shared: dict[str, Any] = field(default_factory=dict)


Make = Callable[[ViewRequest], list[View]]


@dataclass(frozen=True)
class ViewKind:
    """A kind of view.

    Args:
        key: its name in requests.
        rank: its position on the page, in ascending order.
        make: returns the view of each sample; with `once`, a single view.
        reads: the inputs it supports: "images", "texts", "questions".
        once: whether it is the same for all samples, and made after them.
        needs_run: whether it needs a training run; it is then only made for runs, or if requested.
        taps: returns the modules to record.
    """

    key: str
    rank: int
    make: Make
    reads: tuple[str, ...] = ("images",)
    once: bool = False
    needs_run: bool = False
    taps: Callable[[nn.Module], list[nn.Module]] = lambda _: []


VIEWS: Registry[ViewKind] = Registry("view", group="saccade.views", home="saccade.explanation.views")


def register_view(key: str, *, rank: int, **more: Any) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as a view; `ViewKind` describes the options."""

    def put(make: Make) -> Make:
        VIEWS.register(key)(ViewKind(key, rank, make, **more))
        return make

    return put


def all_views(reads: str = "images") -> dict[str, ViewKind]:
    """Return all views of images, texts or questions by key, in page order."""
    return {kind.key: kind for kind in sorted(VIEWS.values(), key=lambda kind: kind.rank) if reads in kind.reads}


def choose_views(keys: Sequence[str] | None, *, reads: str = "images") -> dict[str, ViewKind]:
    """Return the requested views in order, default all; unknown ones are refused with a suggestion."""
    known = all_views(reads)
    for key in keys or ():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"no view {key!r} for {reads}{hint} Available views: {', '.join(known)}")
    if keys is not None and not keys:
        raise ValueError(f"no view was selected; available views: {', '.join(known)}")
    return {key: kind for key, kind in known.items() if keys is None or key in keys}


def same_outputs(model: LoadedModel, other: LoadedModel) -> bool:
    """Whether two models have the same task and outputs."""
    return (model.spec.task, model.spec.outputs) == (other.spec.task, other.spec.outputs)


def check_outputs(model: LoadedModel, other: LoadedModel) -> None:
    """Refuse to compare models with different outputs."""
    if same_outputs(model, other):
        return
    one, two, noun = model.spec.outputs, other.spec.outputs, model.task.presenter.outputs_key
    differ = f"{len(one)} and {len(two)} {noun}" if len(one) != len(two) else f"different {noun}"
    if model.spec.task != other.spec.task:
        differ = f"different tasks, {model.spec.task} and {other.spec.task}"
    raise ValueError(
        f"{model.name} and {other.name} have {differ} ({', '.join(one[:3])}, ... and {', '.join(two[:3])}, ...), so "
        "their predictions cannot be compared; compare only their layers, with --views cka (views=['cka'] in Python)"
    )


def check_layers(model: nn.Module, layers: Sequence[str] | None) -> None:
    """Refuse names of layers that a model does not have."""
    known = [name for name, _ in model.named_modules() if name]
    for name in layers or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; close matches: {', '.join(near)}" if near else ""
            blocks = ", ".join(dict.fromkeys(".".join(path.split(".")[:2]) for path in known))[:600]
            raise ValueError(f"no layer {name!r}{hint}. The model has {blocks}")


def is_within(layer: str | None, layers: Sequence[str] | None) -> bool:
    """Whether a layer is a requested one, or inside one."""
    return layers is None or layer is None or any(f"{layer}.".startswith((f"{name}.", f"{name}#")) for name in layers)


def restrict(captured: Captured, layers: Sequence[str] | None) -> Captured:
    """Keep the attention of the requested layers."""
    return replace(captured, attention=[one for one in captured.attention if is_within(one.label, layers)])


def restrict_figures(view: View, layers: Sequence[str] | None) -> View:
    """Keep the figures of the requested layers, and those without a layer."""
    return replace(view, figures=[figure for figure in view.figures if is_within(figure.layer, layers)])
