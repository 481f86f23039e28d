"""Answers: a model's decoded output for one sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.spec import InputSpec


@dataclass(frozen=True)
class Answer:
    """A model's decoded output for one sample.

    Args:
        text: short text.
        rows: parts of the answer: name, text, and optionally a fraction from 0 to 1, whose meaning is `measure`.
        record: the answer as JSON values, under stable keys.
        said: names of the rows that are predicted, if other rows are listed too.
        mask: class of every pixel, H, W, for segmentation; -1 for none.
        colours: colours of rows that are drawn, by name.
        measure: meaning of the rows' fractions: "probability", or "area" for masks.
    """

    text: str
    rows: tuple[tuple[str, str, float | None], ...]
    record: dict[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    mask: np.ndarray | None = None
    colours: Mapping[str, str] = field(default_factory=dict)
    measure: str = "probability"

    def measured(self, share: float | None) -> dict[str, float | None]:
        """Return a row's fraction under its name, and under that of earlier versions."""
        return {"share": share} if share is None else {self.measure: share, "share": share}


def require_width(output: np.ndarray, spec: InputSpec, numbers: str, outputs: str) -> None:
    """Refuse raw outputs that are not one number for each output, B, outputs."""
    if output.ndim != 2 or output.shape[1] != len(spec.outputs):
        raise ValueError(f"its output has {output.shape[-1]} {numbers} for {len(spec.outputs)} {outputs}")
