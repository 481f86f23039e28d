"""Runs that read texts, and their own tokenizers."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..data.spec import InputSpec
from ..loading import LoadedModel, open_model
from ..metadata import read_about
from ..tasks.opening import find_task
from ..tasks.text.tokens import Reading, open_tokenizer
from ..weights import find_weights


def open_text_run(target: Any, *, device: str | None) -> LoadedModel | None:
    """Open a run whose model reads texts; None for any other target."""
    try:
        file = find_weights(target)
        about = read_about(file) if file.is_file() else {}
        if find_task(str(about.get("task", "classify"))).reads != "text":
            return None
    except ValueError:  # whatever it is, it is opened, or refused, as a model of images
        return None
    return open_model(target, device=device)


class SpecTokenizer:
    """A run's own tokenizer, with what is asked of those of Hugging Face.

    Args:
        spec: of the run.
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec, self.kind = spec, find_task(spec.task)
        self.made = open_tokenizer(Reading.of(spec).tokenizer)
        known = self.made.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in known.items() if token.special]

    def __call__(self, text: str, *, return_tensors: str = "pt") -> dict[str, Tensor]:  # noqa: ARG002
        """Return a text, or two parted by a tab, as a model takes it."""
        kind: Any = self.kind
        texts = tuple(text.split("\t", 1)) if Reading.of(self.spec).pair else (text,)
        return kind.unpack(kind.pack_text(texts, self.spec, name="the text")[None], self.spec)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary writes them."""
        return [self.made.id_to_token(number) or "" for number in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return tokens as text, special ones too."""
        return self.made.decode(list(ids), skip_special_tokens=False)
