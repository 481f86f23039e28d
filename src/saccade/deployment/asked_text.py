"""The text in a request: the form's field `text`, and `pair` for the second of two."""

from typing import Any

from torch import Tensor

from ..tasks.text.tokens import TextError
from .limits import Refusal
from .predictor import Predictor
from .upload import TEXTS, Form


def read_text(form: Form, predictor: Predictor) -> tuple[str, ...]:
    """Return the one or two texts that a model is asked about."""
    wanted = TEXTS[: len(predictor.spec.extra["columns"])]
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
