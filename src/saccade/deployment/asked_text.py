"""The text in a request: the form's field `text`, `pair` for the second of two; a question comes with an image."""

from typing import Any

import numpy as np
from torch import Tensor

from ..data.source import Sample
from ..tasks.text.tokens import TextError
from .limits import Refusal
from .predictor import Predictor
from .upload import TEXTS, Form


def read_text(form: Form, predictor: Predictor) -> tuple[str, ...]:
    """Return the one or two texts that a model is asked about; of a model that reads images too, the question."""
    wanted = TEXTS[: len(predictor.spec.extra.get("columns", ["question"]))]
    missing = [name for name in wanted if not form.fields.get(name)]
    if missing:
        raise Refusal(422, f"{predictor.name} reads {' and '.join(wanted)}; {' and '.join(missing)} has no letters")
    extra = [name for name in TEXTS if form.fields.get(name) and name not in wanted]
    if extra:
        raise Refusal(422, f"{predictor.name} reads one text; {extra[0]} was sent as well: leave it out")
    return tuple(form.fields[name] for name in wanted)


def tokens_of(texts: tuple[str, ...], predictor: Predictor) -> Tensor:
    """Return texts as tokens; what the model cannot be asked is refused."""
    kind: Any = predictor.task
    try:
        return kind.pack_text(texts, predictor.spec, name="the text")
    except TextError as error:
        raise Refusal(422, str(error)) from None


def pack_question(pixels: np.ndarray, question: str, predictor: Predictor) -> Tensor:
    """Return an image, H, W, 3, and a question about it as one tensor; what the model cannot be asked is refused."""
    kind: Any = predictor.task
    try:
        return kind.pack_sample(Sample({"image": pixels, "text": question}, None, "the question"), predictor.spec)
    except TextError as error:
        raise Refusal(422, str(error)) from None
