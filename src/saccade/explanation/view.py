"""Contents of an explanation: answer and views of every sample, figures and numbers of every view."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..report import Html
from ..tasks import Answer

Shares = list[tuple[str, float]]
Rows = Sequence[tuple[str, str, float | None]]  # name, text, and probability if there is one


@dataclass(frozen=True)
class Figure:
    """One image or chart.

    Args:
        key: name of its file and element; letters, digits, "_" and "-".
        caption: caption for readers who do not know the paper.
        pixels: H, W, 3 uint8, written as PNG; None for charts.
        chart: HTML of a chart or text; None for images.
        numbers: measurements, as JSON values.
        layer: name of its layer, if any.
        depth: index of that layer, counted from 0; figures with a depth are on a slider.
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
    """One kind of explanation of a sample.

    Args:
        key: name, such as "attention".
        title: heading.
        about: how to read the figures.
        figures: figures in order.
        absent: reason if there is nothing to show.
        numbers: measurements over all layers, as JSON values.
        row: draw the figures next to each other.
    """

    key: str
    title: str
    about: str
    figures: Sequence[Figure] = ()
    absent: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    row: bool = False


@dataclass(frozen=True)
class ExplainedSample:
    """An image or text with its answer and views."""

    name: str  # name of the image
    pixels: np.ndarray | None  # the framed image before normalisation, H, W, 3 uint8; None for texts
    answer: Shares  # the best classes or labels with probabilities; empty for other answers
    views: list[View]  # views in order; those that do not apply say why
    other: Shares = field(default_factory=list)  # the answer of the second model
    # the complete answer, of any task; None if there is none per image, and for texts
    said: Answer | None = None
    other_said: Answer | None = None  # likewise of the second model

    @property
    def rows(self) -> Rows:
        """The answer as rows of text."""
        return rows_of(self.answer, self.said)

    def measured(self, share: float | None) -> dict[str, float | None]:
        """Return the name of a probability."""
        return (self.said or Answer("", ())).measured(share)

    @property
    def other_rows(self) -> Rows:
        """The second model's answer as rows of text."""
        return rows_of(self.other, self.other_said)


@dataclass(frozen=True)
class Explained:
    """Explanations of images or texts.

    Args:
        model: name of the model.
        samples: samples with their views.
        against: name of the second model, if any.
        notes: notes for the reader.
        outputs: the word for its outputs: classes, labels, columns.
        target: the model's argument on the command line; None for a module.
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


def shares_of(prediction: Answer | None) -> Shares:
    """Return names and probabilities of an answer, if it has some."""
    return [] if prediction is None else [(name, share) for name, _, share in prediction.rows if share is not None]


def rows_of(shares: Shares, prediction: Answer | None) -> Rows:
    """Return an answer as rows of text."""
    return [(name, f"{share:.1%}", share) for name, share in shares] if prediction is None else prediction.rows
