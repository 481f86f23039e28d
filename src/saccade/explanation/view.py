"""What an explanation holds: of every sample the answer and the views, of every view its figures and numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..report import Html
from ..tasks import Answer

Shares = list[tuple[str, float]]
Rows = Sequence[tuple[str, str, float | None]]  # name, text, and a share where it has one


@dataclass(frozen=True)
class Figure:
    """One image or chart.

    Args:
        key: names its file and its element; letters, digits, "_" and "-".
        caption: what it shows, for someone who has not read the paper.
        pixels: H, W, 3 uint8, written as a PNG; None where there is only a chart.
        chart: HTML of a chart or a text; None where there is only an image.
        numbers: what was measured, as JSON can hold it.
        layer: the name of the layer it was read from, if of one.
        depth: the place of that layer in the network, from 0; figures with a depth are put on a slider.
    """

    key: str
    caption: str
    pixels: np.ndarray | None = None
    chart: Html | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    layer: str | None = None
    depth: int | None = None


@dataclass(frozen=True)
class View:
    """One question asked of a model, with its answer.

    Args:
        key: a word, such as "attention".
        title: a heading.
        about: how to read the figures, in plain words.
        figures: in order; empty where the model has none.
        absent: why there is nothing to show; None where there is.
        numbers: what was measured over all layers, as JSON can hold it.
    """

    key: str
    title: str
    about: str
    figures: Sequence[Figure] = ()
    absent: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExplainedSample:
    """One image, or one text, with its answer and its views."""

    name: str  # of the image
    pixels: np.ndarray | None  # as the model saw it, before it was normalised, H, W, 3 uint8; None for a text
    answer: Shares  # the best classes, or labels, and their shares; empty where the model answers otherwise
    views: list[View]  # in order; those that do not apply say why
    other: Shares = field(default_factory=list)  # the answer of the model it was compared with
    # the whole answer, of any task; None where the model gives none for the whole image, and of texts
    said: Answer | None = None
    other_said: Answer | None = None  # that of the model it was compared with

    @property
    def rows(self) -> Rows:
        """The parts of the answer, for people."""
        return rows_of(self.answer, self.said)

    def measured(self, share: float | None) -> dict[str, float | None]:
        """Return the share of a part under its name."""
        return (self.said or Answer("", ())).measured(share)

    @property
    def other_rows(self) -> Rows:
        """The parts of the other model's answer."""
        return rows_of(self.other, self.other_said)


@dataclass(frozen=True)
class Explained:
    """What a model did with images.

    Args:
        model: its name.
        samples: each with its views.
        against: the name of the model it was compared with; None where there was none.
        notes: what the reader should know.
        outputs: what the parts of its answers are called: classes, labels, columns.
        target: what the model is opened by on the command line; None where it was given as a module.
    """

    model: str
    samples: list[ExplainedSample]
    against: str | None = None
    notes: tuple[str, ...] = ()
    outputs: str = "classes"
    target: str | None = None

    @property
    def views(self) -> list[list[View]]:
        """The views of every image."""
        return [image.views for image in self.samples]


def shares_of(said: Answer | None) -> Shares:
    """Return the names and shares of an answer that has some."""
    return [] if said is None else [(name, share) for name, _, share in said.rows if share is not None]


def rows_of(shares: Shares, said: Answer | None) -> Rows:
    """Return the parts of an answer, for people."""
    return [(name, f"{share:.1%}", share) for name, share in shares] if said is None else said.rows
