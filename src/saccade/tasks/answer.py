"""What a model says to one sample, and whether raw answers are what a spec names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.spec import InputSpec


@dataclass(frozen=True)
class Answer:
    """What a model says to one sample, for people and programs.

    Args:
        text: in a few words.
        rows: the parts of the answer: a name, a text, and a share from 0 to 1 where it has one; `measure` says of what.
        record: the same as JSON holds it, under the names that programs rely on.
        said: names of the rows that are the answer, where others are listed beside them.
        mask: class of every pixel, H, W, of tasks that tell one; -1 for none.
        colours: of rows that are drawn in one, by name.
        measure: what the rows' shares are: a probability, or of masks the area that a class covers.
    """

    text: str
    rows: tuple[tuple[str, str, float | None], ...]
    record: dict[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    mask: np.ndarray | None = None
    colours: Mapping[str, str] = field(default_factory=dict)
    measure: str = "probability"

    def measured(self, share: float | None) -> dict[str, float | None]:
        """Return a row's share under its name, and under the one that earlier programs read."""
        return {"share": share} if share is None else {self.measure: share, "share": share}


def require_width(output: np.ndarray, spec: InputSpec, numbers: str, outputs: str) -> None:
    """Refuse raw answers that are not one number for each output, B, outputs."""
    if output.ndim != 2 or output.shape[1] != len(spec.outputs):
        raise ValueError(f"it gives {output.shape[-1]} {numbers} for {len(spec.outputs)} {outputs}")
