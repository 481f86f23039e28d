"""Explain a model's predictions for images or texts: all applicable views on one page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..building.loading import LoadedModel, open_device
from ..data.spec import InputSpec
from ..kernels import removed
from ..plugins.tokens import HostError, find_host
from ..report.markup import shorten
from ..tasks import Answer
from .beside import choose_attributions, join
from .capture import Captured, capture
from .opening import ImageLike, SpecTokenizer, open_target, open_text_run, read_images, read_samples, to_pixels
from .outputs import BEST, Text, find_logits, is_dense, name_answers, read_output, read_text
from .questions import explain_questions
from .recording import Recorded, eval_mode, record
from .request import (
    Estimator,
    Heads,
    Method,
    Options,
    ViewKind,
    ViewRequest,
    all_views,
    check_layers,
    check_outputs,
    choose_views,
    restrict,
    restrict_figures,
    same_outputs,
)
from .result import Explanation
from .view import ExplainedSample, Shares, shares_of

BATCH = 8  # batch size
MAX_NAME = 60  # most characters of a text in its name


def explain(
    model: nn.Module | str | Path,
    images: ImageLike | Sequence[ImageLike] | Text | Sequence[Text],
    *,
    views: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    against: nn.Module | str | Path | None = None,
    beside: Sequence[nn.Module | str | Path] = (),
    data: str | None = None,
    samples: int = 64,
    block: int | str | None = None,
    epochs: Sequence[int] | None = None,
    heads: Heads = "mean",
    estimator: Estimator = "unbiased",
    shape: InputSpec | None = None,
    device: str | None = None,
    tokenizer: Any = None,
    method: Method = "gradient",
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain a model's predictions for images by all applicable views.

    Args:
        model: run folder, weights, timm model name, NAME@FILE, or a module.
        images: one or several files, PIL images or uint8 arrays. For text models, texts (with a tokenizer) or token
            ids: see `explain_texts`, with the views "words" and "attention". For runs that answer questions, tables or
            lines of images and questions: see `explain_questions`.
        views: keys of views; default: all.
        layers: paths of modules; figures and rows of other layers are left out.
        against: a second model, whose predictions are shown and whose layers CKA compares with the first's.
        beside: further models, whose attributions ("gradcam", "words", "regions") are shown next to the first's.
        data: dataset for CKA, as for training, or "run" for the validation images of the model's run; default:
            `images`, if there are enough.
        samples: number of images of `data`.
        block: for "slots-training": number of a block with slots, counted from 1, or its path; default: the middle one.
        epochs: for "slots-training": only the weights at the end of these epochs, counted from 1; default: all kept.
        heads: for "attention": "mean" of the heads, "all" for each head as well, or numbers of heads, counted from 0.
        estimator: for CKA: "unbiased", or "biased" as in the NomMer paper.
        shape: input specification of a module that has none.
        device: device to run on; default: the module's, or the CPU.
        tokenizer: Hugging Face tokenizer for texts; runs have their own.
        method: for "words" and "regions": "gradient" times input or "integrated" gradients; for words of texts also
            propagated "relevance" or "lime".
        progress: prints progress.
    """
    views, layers = (None if names is None else _listed(names) for names in (views, layers))
    opened = None if isinstance(model, nn.Module) else open_text_run(model, device=device)
    if beside:
        reads = "images" if opened is None else f"{opened.task.reader.reads}s"
        reads = "texts" if opened is None and reads_text(model) else reads
        of_one = {"against": against, "layers": layers, "data": data, "block": block, "epochs": epochs}
        of_one |= {"heads": heads if heads != "mean" else None, "estimator": None if estimator == "unbiased" else ""}
        if alone := [name for name, value in of_one.items() if value is not None]:
            raise ValueError(
                f"{', '.join(alone)} was given with beside, whose views do not use it; leave one of them out"
            )
        images = list(images) if isinstance(images, Iterator) else images  # every model reads them
        how: Any = {"views": choose_attributions(views, reads=reads), "shape": shape, "device": device}
        how |= {"tokenizer": tokenizer, "method": method, "progress": progress}
        return join([explain(one, images, **how) for one in (model, *beside)])
    if opened is not None or reads_text(model):
        of_images = {"against": against, "data": data, "block": block, "epochs": epochs, "shape": shape}
        of_images |= {"heads": heads if heads != "mean" else None, "estimator": None if estimator == "unbiased" else ""}
        if unread := [name for name, value in of_images.items() if value is not None]:
            raise ValueError(
                f"{', '.join(unread)} {'apply' if unread[1:] else 'applies'} to images only, and this model reads "
                f"{'texts' if opened is None else f'{opened.task.reader.reads}s'}; remove "
                f"{'them' if unread[1:] else 'it'}"
            )
        given: Any = {"views": views, "layers": layers, "device": device, "progress": progress, "method": method}
        if opened is None:
            return explain_texts(model, images, tokenizer=tokenizer, **given)  # type: ignore[arg-type]
        if opened.task.reader.reads == "question":
            found = explain_questions(opened, images, views=views, layers=layers, method=method, progress=progress)
            return replace(found, target=str(model))
        shared = {"tokenizer": SpecTokenizer(opened.spec), "classes": opened.spec.outputs}
        found = explain_texts(opened.model, images, **shared, **given)  # type: ignore[arg-type]
        return replace(found, model=opened.name, target=str(model))
    if method != "gradient":
        raise ValueError(f"method={method} is for models that read texts, and this model reads images; remove it")
    tell = progress or (lambda _: None)
    chosen = choose_views(views)
    named = read_images(images)  # type: ignore[arg-type]
    tell("opening the model")
    loaded = open_target(model, spec=shape, device=device)
    if views is None and loaded.folder is None:
        chosen = {key: kind for key, kind in chosen.items() if not kind.needs_run}
    other = None if against is None else open_target(against, device=device)
    check_layers(loaded.model, layers)
    if other is not None and not all(kind.once for kind in chosen.values()):
        check_outputs(loaded, other)
    many = [pixels for _, pixels in named]
    if data is not None and any(kind.once for kind in chosen.values()):
        tell("reading images")
        many = read_samples(loaded, data, samples)
    options = Options(layers, block, epochs, heads, estimator)
    request = ViewRequest(loaded.model, 1, options, loaded=loaded, other=other, samples=many)
    request = replace(request, classes=loaded.spec.outputs or None)
    explained: list[ExplainedSample] = []
    with removed(loaded.model), removed(nn.Module() if other is None else other.model):
        for begin in range(0, len(named), BATCH):
            explained += _explain(request, named[begin : begin + BATCH], chosen, tell=tell)
        for kind in chosen.values():
            if kind.once:
                tell(f"view: {kind.key}")
                (view,) = kind.make(request)
                explained = [replace(one, views=[*one.views, view]) for one in explained]
    if layers is not None and not any(view.figures for sample in explained for view in sample.views):
        raise ValueError(f"no view has a figure of {', '.join(layers)}; omit layers= to see which layers have one")
    name = None if other is None else other.name
    target = None if isinstance(model, nn.Module) else str(model)
    return Explanation(loaded.name, explained, name, loaded.notes, loaded.task.presenter.outputs_key, target)


def _explain(
    request: ViewRequest,
    named: Sequence[tuple[str, np.ndarray]],
    chosen: Mapping[str, ViewKind],
    *,
    tell: Callable[[str], None],
) -> list[ExplainedSample]:
    """Explain a batch of named images by all views, except those made once."""
    loaded, other, layers = request.loaded, request.other, request.options.layers
    assert loaded is not None
    framed = torch.stack([loaded.frame(pixels) for _, pixels in named])
    images, pixels = loaded.normalize(framed), [to_pixels(one) for one in framed]
    tell("recording the model")
    captured, recorded = _run(loaded, images)
    sizes = [(pixels.shape[0], pixels.shape[1]) for _, pixels in named]
    answers = _name(loaded, captured, sizes)
    request = replace(request, count=len(images), images=images, pixels=pixels, answers=answers)
    request = replace(request, captured=restrict(captured, layers), recorded=recorded)
    found = []
    for key, kind in chosen.items():
        if not kind.once:
            tell(f"view: {key}")
            found.append(kind.make(request))
    others: list[Answer | None] = [None] * len(images)
    if other is not None and same_outputs(loaded, other):
        second = other.normalize(torch.stack([other.frame(pixels) for _, pixels in named]))
        others = _name(other, _run(other, second)[0], sizes)
    return [
        ExplainedSample(
            name,
            pixels[i],
            shares_of(answers[i]),
            [restrict_figures(views[i], layers) for views in found],
            shares_of(others[i]),
            answers[i],
            others[i],
        )
        for i, (name, _) in enumerate(named)
    ]


def _name(model: LoadedModel, captured: Captured, sizes: Sequence[tuple[int, int]]) -> list[Answer | None]:
    """Return the answer for each image of the given original size; None if the model has none for whole images."""
    count = len(sizes)
    output = find_logits(captured.output, count)
    given = read_output(captured.output)
    objects = model.task.presenter.boxes and isinstance(given, Tensor) and given.ndim == 3 and len(given) == count
    if output is None and (objects or (model.task.presenter.masks and is_dense(given))):
        output = given
    return [None] * count if output is None else [*name_answers(output, model, sizes)]


def _run(loaded: LoadedModel, images: Tensor) -> tuple[Captured, Recorded]:
    """Run a model once; record its output, its attention, and the taps of the views."""
    model = loaded.model
    taps = [tap for kind in all_views().values() for tap in kind.taps(model)]
    with torch.no_grad(), eval_mode(model), record(taps) as recorded:
        try:
            return capture(model, images), recorded
        except (TypeError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ValueError(
                f"{loaded.name} could not be run on images of shape {tuple(images.shape)} ({type(error).__name__}: "
                f"{str(error)[:200]}); a model is explained by calling it with a batch of images: if it expects "
                "other ones, describe them with shape="
            ) from error


def _listed(names: Sequence[str]) -> list[str]:
    """Return one name or several as a list."""
    return [names] if isinstance(names, str) else list(names)


def reads_text(model: Any) -> bool:
    """Whether a model is a text model."""
    try:
        return isinstance(model, nn.Module) and find_host(model).text
    except HostError:
        return False


def explain_texts(
    model: nn.Module,
    texts: Text | Sequence[Text],
    *,
    tokenizer: Any = None,
    classes: Sequence[str] | None = None,
    views: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    method: Method = "gradient",
    device: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain a model's predictions for texts.

    Args:
        model: any text classifier.
        texts: one or several: texts, if there is a tokenizer; token ids, 1, N; or mappings with `input_ids`.
        tokenizer: Hugging Face tokenizer.
        classes: class names; default: those of the model's configuration.
        views: keys of views that read texts; default: all.
        layers: paths of modules; rows of other layers are left out.
        method: for "words": "gradient" times input, "integrated" gradients, propagated "relevance", or "lime".
        device: device to run on; default: the model's.
        progress: prints progress.
    """
    chosen = choose_views(views, reads="texts")
    check_layers(model, layers)
    listed: list[Any] = [texts] if isinstance(texts, str | Tensor | Mapping) else list(texts)
    if not listed:
        raise ValueError("no text given; give at least one")
    if device is not None:
        model = model.to(open_device(device))
    on = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    classes = classes or _classes(model)
    explained = []
    with removed(model):
        for number, text in enumerate(listed):
            if progress is not None:
                progress(f"text {number + 1}")
            name = shorten(text, MAX_NAME) if isinstance(text, str) else f"text {number + 1}"
            inputs = read_text(text, tokenizer, on)
            with torch.no_grad(), eval_mode(model):
                captured = capture(model, inputs) if isinstance(inputs, Tensor) else capture(model, **inputs)
            logits = find_logits(captured.output, 1)
            answer: Shares = [] if logits is None else _answer(logits[0], classes)
            request = ViewRequest(
                model, 1, Options(layers, method=method), restrict(captured, layers), tokenizer=tokenizer
            )
            request = replace(request, inputs=inputs, classes=classes)
            shown = [view for kind in chosen.values() for view in kind.make(request)]
            explained.append(ExplainedSample(name, None, answer, shown))
    return Explanation(type(model).__name__, explained)


def _classes(model: nn.Module) -> list[str] | None:
    labels = getattr(getattr(model, "config", None), "id2label", None)
    return [str(labels[index]) for index in sorted(labels)] if labels else None


def _answer(logits: Tensor, classes: Sequence[str] | None) -> Shares:
    best = logits.float().softmax(0).topk(min(BEST, len(logits)))
    named = classes if classes is not None and len(classes) == len(logits) else None
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(f"class {index}" if named is None else named[index], share) for index, share in pairs]
