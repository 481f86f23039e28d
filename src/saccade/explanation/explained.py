"""What a model did with each picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..tasks import Answer
from .view import View

Shares = list[tuple[str, float]]
Rows = Sequence[tuple[str, str, float | None]]  # name, text, and a share where it has one


@dataclass(frozen=True)
class ExplainedPicture:
    """One picture, or one text, with its answer and its views.

    Args:
        name: of the picture.
        pixels: as the model saw it, before it was normalised, H, W, 3 uint8; None for a text.
        answer: the best classes, or labels, and their shares; empty where the model answers otherwise.
        views: in order; those that do not apply say why.
        other: the answer of the model it was compared with.
        said: the whole answer, of any task; None where the model gives none for the whole picture, and of texts.
        other_said: that of the model it was compared with.
    """

    name: str
    pixels: np.ndarray | None
    answer: Shares
    views: list[View]
    other: Shares = field(default_factory=list)
    said: Answer | None = None
    other_said: Answer | None = None

    @property
    def rows(self) -> Rows:
        """The parts of the answer, for people."""
        return rows_of(self.answer, self.said)

    @property
    def other_rows(self) -> Rows:
        """The parts of the other model's answer."""
        return rows_of(self.other, self.other_said)


@dataclass(frozen=True)
class ExplainedPictures:
    """What a model did with pictures.

    Args:
        model: its name.
        pictures: each with its views.
        against: the name of the model it was compared with; None where there was none.
        notes: what the reader should know.
        outputs: what the parts of its answers are called: classes, labels, columns.
    """

    model: str
    pictures: list[ExplainedPicture]
    against: str | None = None
    notes: tuple[str, ...] = ()
    outputs: str = "classes"

    @property
    def views(self) -> list[list[View]]:
        """The views of every picture."""
        return [picture.views for picture in self.pictures]


def shares_of(said: Answer | None) -> Shares:
    """Return the names and shares of an answer that has some."""
    return [] if said is None else [(name, share) for name, _, share in said.rows if share is not None]


def rows_of(shares: Shares, said: Answer | None) -> Rows:
    """Return the parts of an answer, for people."""
    return [(name, f"{share:.1%}", share) for name, share in shares] if said is None else said.rows
