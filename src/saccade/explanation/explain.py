"""Explain what a model did with pictures: every view that applies to it, on one page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..data.spec import InputSpec
from ..layers.slots import SlotMixer
from ..loading import LoadedModel
from ..tasks import Answer
from .answers import Pooled, find_logits, is_dense, name_answers
from .attention import attention_view, density_view
from .capture import Captured, capture
from .checkpoints import open_checkpoints
from .choice import check_layers, check_outputs, check_shown, check_views, only, restrict, same_question
from .cka import Estimator
from .explained import ExplainedPicture, shares_of
from .gradcam import gradcam_view
from .listening import Heard, eval_mode, listen
from .nomination import nomination_taps, nomination_view
from .opening import open_target
from .pictures import Picture, read_pictures, read_samples, to_pixels
from .result import Explanation
from .scaling import scaling_view
from .similarity import cka_view
from .slots import slot_taps, slots_over_checkpoints, slots_view
from .texts import Text, explain_texts, reads_text
from .view import View

CAPTURED = ("attention", "density")  # views of what one forward pass is listened to for
TOGETHER = 8  # pictures in a batch

Stages = tuple[list[tuple[str, nn.Module]], str]  # a run's models as training went on, and a sentence on them


@dataclass(frozen=True)
class Choice:
    """What the user chose of the views: see `explain`."""

    layers: Sequence[str] | None
    block: int | str | None
    heads: Literal["mean", "all"] | Sequence[int]


def explain(
    model: nn.Module | str | Path,
    images: Picture | Sequence[Picture] | Text | Sequence[Text],
    *,
    views: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    against: nn.Module | str | Path | None = None,
    data: str | None = None,
    samples: int = 64,
    block: int | str | None = None,
    epochs: Sequence[int] | None = None,
    heads: Literal["mean", "all"] | Sequence[int] = "mean",
    estimator: Estimator = "unbiased",
    shape: InputSpec | None = None,
    device: str | None = None,
    tokenizer: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain what a model did with pictures, by every view that applies to it.

    Args:
        model: a run's folder, its weights, a timm model by its name, or a module.
        images: files, PIL images or arrays of uint8; one or several. For a module that reads words, texts (with a
            tokenizer) or token numbers: see `explain_texts`, whose views are those of words and attention.
        views: keys of the views to make, of `VIEWS`; all if not given.
        layers: paths of modules; figures and rows of other layers are left out.
        against: a second model: its answers stand beside, and CKA compares its layers with the first's.
        data: a set of pictures for CKA, as for training, or "run" for the validation pictures of the model's run; the
            images themselves if not given and there are enough.
        samples: how many pictures of `data` to use.
        block: of "slots-training": the number of a block with slots, from 1, or its path; the middle one if not given.
        epochs: of "slots-training": only the weights at the end of these epochs, from 1; all that were kept if not
            given.
        heads: of "attention": "mean" of the heads, "all" one by one beside it, or the numbers of some, from 0.
        estimator: of CKA: "unbiased", or "biased" as in the NomMer paper.
        shape: how a module wants its pictures, where it does not say.
        device: where to run; where a module is, or the CPU, if not given.
        tokenizer: of Hugging Face, for texts.
        progress: is told what is being done.
    """
    views, layers = (None if names is None else _listed(names) for names in (views, layers))
    if reads_text(model):
        if against is not None or data is not None:
            raise ValueError(
                "against= or data= was given and the model reads words: they are for pictures, leave them out"
            )
        given: Any = {"tokenizer": tokenizer, "views": views, "layers": layers, "device": device, "progress": progress}
        return explain_texts(model, images, **given)  # type: ignore[arg-type]
    tell = progress or (lambda _: None)
    chosen = check_views(views)
    pictures = read_pictures(images)  # type: ignore[arg-type]
    tell("opening the model")
    loaded = open_target(model, spec=shape, device=device)
    if views is None and loaded.folder is None:
        chosen = tuple(key for key in chosen if key != "slots-training")  # there was no training to look back on
    other = None if against is None else open_target(against, device=device)
    check_layers(loaded.model, layers)
    if other is not None:
        check_outputs(loaded, other, chosen)
    many = [picture for _, picture in pictures]
    if data is not None and "cka" in chosen:
        tell("reading pictures")
        many = read_samples(loaded, data, samples)
    stages = _stages(loaded, chosen, epochs)
    choice = Choice(layers, block, heads)
    explained: list[ExplainedPicture] = []
    for begin in range(0, len(pictures), TOGETHER):
        some = pictures[begin : begin + TOGETHER]
        explained += _explain(loaded, some, chosen, choice=choice, other=other, stages=stages, tell=tell)
    if "cka" in chosen:
        tell("comparing layers")
        view = _cka(loaded, many, other, layers, estimator)
        explained = [replace(one, views=[*one.views, view]) for one in explained]
    if layers is not None:
        check_shown(explained, layers)
    name = None if other is None else other.name
    return Explanation(loaded.name, explained, name, loaded.notes, loaded.task.outputs_key)


def _explain(
    loaded: LoadedModel,
    pictures: Sequence[tuple[str, np.ndarray]],
    chosen: Sequence[str],
    *,
    choice: Choice,
    other: LoadedModel | None,
    stages: Stages,
    tell: Callable[[str], None],
) -> list[ExplainedPicture]:
    """Explain a batch of pictures, all but the similarity of layers."""
    framed = torch.stack([loaded.frame(picture) for _, picture in pictures])
    images, pixels = loaded.normalize(framed), [to_pixels(one) for one in framed]
    tell("listening to the model")
    captured, heard = _listen(loaded, images)
    answers = _name(loaded, captured, len(images))
    found: dict[str, list[View]] = {}
    for key in chosen:
        tell(f"view: {key}")
        if key in CAPTURED:
            few = restrict(captured, choice.layers)
            found[key] = (
                density_view(few, len(images)) if key == "density" else attention_view(few, pixels, heads=choice.heads)
            )
        elif key != "cka":
            found[key] = _make(
                key,
                loaded,
                images,
                pixels,
                answers=answers,
                captured=captured,
                heard=heard,
                stages=stages,
                block=choice.block,
            )
    others: list[Answer | None] = [None] * len(images)
    if other is not None and same_question(loaded, other):
        second = other.normalize(torch.stack([other.frame(picture) for _, picture in pictures]))
        others = _name(other, _listen(other, second)[0], len(images))
    return [
        ExplainedPicture(
            name,
            pixels[i],
            shares_of(answers[i]),
            [only(found[key][i], choice.layers) for key in found],
            shares_of(others[i]),
            answers[i],
            others[i],
        )
        for i, (name, _) in enumerate(pictures)
    ]


def _name(model: LoadedModel, captured: Captured, count: int) -> list[Answer | None]:
    """Return what a model said to each picture; None where it gives no answer for a whole one."""
    output = find_logits(captured.output, count)
    return [None] * count if output is None else [*name_answers(output, model)]


def _make(
    key: str,
    loaded: LoadedModel,
    images: Tensor,
    pixels: Sequence[np.ndarray],
    *,
    answers: Sequence[Answer | None],
    captured: Captured,
    heard: Heard,
    stages: Stages,
    block: int | str | None,
) -> list[View]:
    model = loaded.model
    if key == "gradcam":
        asked, names = Pooled(model) if is_dense(captured.output) else model, loaded.spec.outputs or None
        said = next((answer for answer in answers if answer is not None), None)
        numbers = said is not None and not shares_of(said)
        # One picture at a time: a backward pass keeps all that passed through the network.
        return [
            gradcam_view(asked, images[i : i + 1], [picture], classes=names, numbers=numbers)[0]
            for i, picture in enumerate(pixels)
        ]
    if key == "scaling":
        return scaling_view(model, len(pixels))
    if key == "nomination":
        return nomination_view(model, images, pixels, heard=heard)
    if key == "slots":
        return slots_view(model, images, pixels, heard=heard)
    models, note = stages
    return slots_over_checkpoints(models, images, pixels, layer=block, note=note)


def _stages(loaded: LoadedModel, chosen: Sequence[str], epochs: Sequence[int] | None) -> Stages:
    """Return a run's models as training went on, where slots are to be followed through it; else the model alone."""
    alone = [("final weights", loaded.model)]
    if "slots-training" not in chosen or not any(isinstance(module, SlotMixer) for module in loaded.model.modules()):
        return alone, ""
    if loaded.folder is None:
        return alone, "The model is of no run, so there are its present weights alone."
    models, note = open_checkpoints(loaded.folder, epochs=epochs)
    return [(name, one.to(loaded.device)) for name, one in models], note


def _listen(loaded: LoadedModel, images: Tensor) -> tuple[Captured, Heard]:
    """Run a model once, for its answer, its attention, and what passes the taps of nominations and slots."""
    model = loaded.model
    with torch.no_grad(), eval_mode(model), listen([*nomination_taps(model), *slot_taps(model)]) as heard:
        try:
            return capture(model, images), heard
        except (TypeError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ValueError(
                f"{loaded.name} could not be run on pictures of {tuple(images.shape)} ({type(error).__name__}: "
                f"{str(error)[:200]}); a model is explained by calling it with a batch of pictures: if it wants them "
                "otherwise, say so by shape="
            ) from error


def _cka(
    loaded: LoadedModel,
    read: Sequence[np.ndarray],
    other: LoadedModel | None,
    layers: Sequence[str] | None,
    estimator: Estimator,
) -> View:
    first = loaded.normalize(torch.stack([loaded.frame(picture) for picture in read]))
    second = None if other is None else other.normalize(torch.stack([other.frame(picture) for picture in read]))
    names = (loaded.name, "" if other is None else other.name)
    if other is not None and names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    second_model = None if other is None else other.model
    shared: dict[str, Any] = {"other": second_model, "other_samples": second, "names": names, "layers": layers}
    shared["estimator"] = estimator
    return cka_view(loaded.model, first, 1, **shared)[0]


def _listed(names: Sequence[str]) -> list[str]:
    """Return names as a list; a single one may be given as it is."""
    return [names] if isinstance(names, str) else list(names)
