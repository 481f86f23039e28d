"""Which views and layers are asked for, and whether they can be had."""

import difflib
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ..loading import LoadedModel
from .capture import Captured
from .explained import ExplainedPicture
from .view import View

VIEWS = ("gradcam", "attention", "density", "scaling", "nomination", "slots", "slots-training", "cka")
TEXT_VIEWS = ("words", "density", "scaling")  # of models that read words


def check_views(
    views: Sequence[str] | None, known: tuple[str, ...] = VIEWS, *, what: str = "pictures"
) -> tuple[str, ...]:
    """Return the keys of the views to make, in their order; an unknown one is refused with the nearest.

    Args:
        views: what was asked for; all if None.
        known: the views there are.
        what: they are of.
    """
    if views is None:
        return known
    for key in views:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"there is no view {key!r} of {what}{hint} There are {', '.join(known)}")
    if not views:
        raise ValueError(f"no view was asked for; there are {', '.join(known)}")
    return tuple(key for key in known if key in views)


def same_question(model: LoadedModel, other: LoadedModel) -> bool:
    """Tell whether two models answer the same task with the same outputs."""
    return (model.spec.task, model.spec.outputs) == (other.spec.task, other.spec.outputs)


def check_outputs(model: LoadedModel, other: LoadedModel, chosen: Sequence[str]) -> None:
    """Refuse to compare the answers of models that answer with something else."""
    if same_question(model, other) or tuple(chosen) == ("cka",):
        return
    one, two, noun = model.spec.outputs, other.spec.outputs, model.task.outputs_key
    differ = f"{len(one)} and {len(two)} {noun}" if len(one) != len(two) else f"{noun} of other names"
    if model.spec.task != other.spec.task:
        differ = f"other tasks, {model.spec.task} and {other.spec.task}"
    raise ValueError(
        f"{model.name} and {other.name} have {differ} ({', '.join(one[:3])}, ... and {', '.join(two[:3])}, ...), "
        "so their answers cannot be compared; compare their layers alone by --views cka (views=['cka'] in Python)"
    )


def check_layers(model: nn.Module, layers: Sequence[str] | None) -> None:
    """Refuse names of layers that a model does not have."""
    known = [name for name, _ in model.named_modules() if name]
    for name in layers or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            told = f"; the nearest are {', '.join(near)}" if near else ""
            blocks = ", ".join(dict.fromkeys(".".join(path.split(".")[:2]) for path in known))[:600]
            raise ValueError(f"there is no layer {name!r}{told}. The model has {blocks}")


def within(layer: str | None, layers: Sequence[str] | None) -> bool:
    """Tell whether a layer is one of those asked for, or inside one."""
    return layers is None or layer is None or any(f"{layer}.".startswith((f"{name}.", f"{name}#")) for name in layers)


def restrict(captured: Captured, layers: Sequence[str] | None) -> Captured:
    """Keep the attention of the layers asked for."""
    return replace(captured, attention=[one for one in captured.attention if within(one.label, layers)])


def only(view: View, layers: Sequence[str] | None) -> View:
    """Keep the figures of the layers asked for, and those of no single layer."""
    return replace(view, figures=[figure for figure in view.figures if within(figure.layer, layers)])


def check_shown(explained: Sequence[ExplainedPicture], layers: Sequence[str]) -> None:
    """Refuse layers of which there is nothing to see."""
    if not any(view.figures for picture in explained for view in picture.views):
        raise ValueError(f"no view has a figure of {', '.join(layers)}; leave layers= out to see which layers have one")
