"""What is asked of the views, which views there are, and whether what was asked can be had."""

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
Method = Literal["gradient", "integrated"]  # of the influence of words


@dataclass(frozen=True)
class Options:
    """What the user chose of the views: see `explain`."""

    layers: Sequence[str] | None = None
    block: int | str | None = None
    epochs: Sequence[int] | None = None
    heads: Heads = "mean"
    estimator: Estimator = "unbiased"
    method: Method = "gradient"


@dataclass(frozen=True)
class ViewRequest:
    """A batch of samples that a model was run on, for a view to be made of each.

    Args:
        model: what is explained.
        count: samples.
        options: what the user chose.
        captured: the attention of the layers asked for, and the model's output.
        recorded: what passed the taps of all views.
        loaded: the model with what is known of it; None of texts.
        images: B, C, H, W as the model takes them; None of texts.
        pixels: the images, each H, W, 3 uint8.
        answers: what the model said to each.
        other: the model it is compared with.
        samples: images to compare layers by, H, W, 3 each.
        inputs: of a text, what the model was given.
        tokenizer: of Hugging Face, for texts.
        classes: names of the model's outputs, where they are known.
        shared: what a view keeps from one batch to the next.
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
    """A view that can be made.

    Args:
        key: a word, by which it is asked for.
        rank: its place on the page, smallest first.
        make: returns the view of each sample; of one that is made once, a single view.
        reads: of "images" and "texts", what it can be made of.
        once: it is the same for all samples, and made when they are done.
        needs_run: it looks back on training, so it is made of a run, or if it is asked for.
        taps: modules whose outputs it wants recorded.
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
    """Return a decorator that makes a view of a function; see `ViewKind` for what more can be said of it."""

    def put(make: Make) -> Make:
        VIEWS.register(key)(ViewKind(key, rank, make, **more))
        return make

    return put


def all_views(reads: str = "images") -> dict[str, ViewKind]:
    """Return the views of images or texts by their keys, in the order of a page: those of `views/`, and of others."""
    return {kind.key: kind for kind in sorted(VIEWS.values(), key=lambda kind: kind.rank) if reads in kind.reads}


def choose_views(keys: Sequence[str] | None, *, reads: str = "images") -> dict[str, ViewKind]:
    """Return the views to make in their order, all if none is named; an unknown one is refused with the nearest."""
    known = all_views(reads)
    for key in keys or ():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"there is no view {key!r} of {reads}{hint} There are {', '.join(known)}")
    if keys is not None and not keys:
        raise ValueError(f"no view was asked for; there are {', '.join(known)}")
    return {key: kind for key, kind in known.items() if keys is None or key in keys}


def same_question(model: LoadedModel, other: LoadedModel) -> bool:
    """Tell whether two models answer the same task with the same outputs."""
    return (model.spec.task, model.spec.outputs) == (other.spec.task, other.spec.outputs)


def check_outputs(model: LoadedModel, other: LoadedModel) -> None:
    """Refuse to compare the answers of models that answer with something else."""
    if same_question(model, other):
        return
    one, two, noun = model.spec.outputs, other.spec.outputs, model.task.presenter.outputs_key
    differ = f"{len(one)} and {len(two)} {noun}" if len(one) != len(two) else f"{noun} of other names"
    if model.spec.task != other.spec.task:
        differ = f"other tasks, {model.spec.task} and {other.spec.task}"
    raise ValueError(
        f"{model.name} and {other.name} have {differ} ({', '.join(one[:3])}, ... and {', '.join(two[:3])}, ...), "
        "so their answers cannot be compared; compare their layers alone with --views cka (views=['cka'] in Python)"
    )


def check_layers(model: nn.Module, layers: Sequence[str] | None) -> None:
    """Refuse names of layers that a model does not have."""
    known = [name for name, _ in model.named_modules() if name]
    for name in layers or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            blocks = ", ".join(dict.fromkeys(".".join(path.split(".")[:2]) for path in known))[:600]
            raise ValueError(f"there is no layer {name!r}{hint}. The model has {blocks}")


def is_within(layer: str | None, layers: Sequence[str] | None) -> bool:
    """Tell whether a layer is one of those asked for, or inside one."""
    return layers is None or layer is None or any(f"{layer}.".startswith((f"{name}.", f"{name}#")) for name in layers)


def restrict(captured: Captured, layers: Sequence[str] | None) -> Captured:
    """Keep the attention of the layers asked for."""
    return replace(captured, attention=[one for one in captured.attention if is_within(one.label, layers)])


def restrict_figures(view: View, layers: Sequence[str] | None) -> View:
    """Keep the figures of the layers asked for, and those of no single layer."""
    return replace(view, figures=[figure for figure in view.figures if is_within(figure.layer, layers)])
