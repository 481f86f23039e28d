"""What a view is made of: figures with their numbers, or the reason why a model has none."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..report import Html


@dataclass(frozen=True)
class Figure:
    """One picture or chart.

    Args:
        key: names its file and its element; letters, digits, "_" and "-".
        caption: what it shows, for someone who has not read the paper.
        pixels: H, W, 3 uint8, written as a PNG; None where there is only a chart.
        chart: HTML of a chart or a text; None where there is only a picture.
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
