"""Explain what a model did with texts: the influence of words, and how dense its attention is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..loading import open_device
from ..plugins.tokens import HostError, find_host
from ..report.markup import shorten
from .answers import BEST, find_logits
from .attention import density_view
from .capture import capture
from .choice import TEXT_VIEWS, check_layers, check_views, restrict
from .explained import ExplainedPicture, Shares
from .listening import eval_mode
from .result import Explanation
from .scaling import scaling_view
from .view import View
from .words import Text, read_text, words_view

NAME = 60  # characters of a text that stands for its name


def reads_text(model: Any) -> bool:
    """Tell whether what is to be explained is a model that reads words."""
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
    device: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain what a model did with texts.

    Args:
        model: any classifier of texts.
        texts: one or several; each a text, if there is a tokenizer, token numbers of shape 1, N, or a mapping with
            `input_ids`.
        tokenizer: of Hugging Face.
        classes: names of the classes; what the model's configuration says if not given.
        views: keys of the views to make, of `TEXT_VIEWS`; all if not given.
        layers: paths of modules; rows of other layers are left out.
        device: where to run; where the model is if not given.
        progress: is told what is being done.
    """
    chosen = check_views(views, TEXT_VIEWS, what="texts")
    check_layers(model, layers)
    listed: list[Any] = [texts] if isinstance(texts, str | Tensor | Mapping) else list(texts)
    if not listed:
        raise ValueError("no text was given; give at least one")
    if device is not None:
        model = model.to(open_device(device))
    place = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    classes = classes or _classes(model)
    explained = []
    for number, text in enumerate(listed):
        if progress is not None:
            progress(f"text {number + 1}")
        name = shorten(text, NAME) if isinstance(text, str) else f"text {number + 1}"
        inputs = read_text(text, tokenizer, place)
        with torch.no_grad(), eval_mode(model):
            captured = capture(model, inputs) if isinstance(inputs, Tensor) else capture(model, **inputs)
        logits = find_logits(captured.output, 1)
        answer: Shares = [] if logits is None else _answer(logits[0], classes)
        shown: list[View] = []
        for key in chosen:
            if key == "words":
                shown.append(words_view(model, inputs, tokenizer=tokenizer, classes=classes))
            else:
                shown += density_view(restrict(captured, layers), 1) if key == "density" else scaling_view(model, 1)
        explained.append(ExplainedPicture(name, None, answer, shown))
    return Explanation(type(model).__name__, explained)


def _classes(model: nn.Module) -> list[str] | None:
    labels = getattr(getattr(model, "config", None), "id2label", None)
    return [str(labels[index]) for index in sorted(labels)] if labels else None


def _answer(logits: Tensor, classes: Sequence[str] | None) -> Shares:
    best = logits.float().softmax(0).topk(min(BEST, len(logits)))
    named = classes if classes is not None and len(classes) == len(logits) else None
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(f"class {index}" if named is None else named[index], share) for index, share in pairs]
