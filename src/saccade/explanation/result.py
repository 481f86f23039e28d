"""What an explanation holds."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .view import View

Answer = list[tuple[str, float]]


@dataclass(frozen=True)
class ExplainedPicture:
    """One picture, or one text, with its answer and its views.

    Args:
        name: of the picture.
        pixels: as the model saw it, before it was normalised, H, W, 3 uint8; None for a text.
        answer: the best classes and their shares; empty where the model does not classify.
        views: in order; those that do not apply say why.
        other: the answer of the model it was compared with.
    """

    name: str
    pixels: np.ndarray | None
    answer: Answer
    views: list[View]
    other: Answer = field(default_factory=list)


@dataclass(frozen=True)
class Explanation:
    """What a model did with pictures.

    Args:
        model: its name.
        pictures: each with its views.
        against: the name of the model it was compared with; None where there was none.
        notes: what the reader should know.
    """

    model: str
    pictures: list[ExplainedPicture]
    against: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> list[list[View]]:
        """The views of every picture."""
        return [picture.views for picture in self.pictures]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page, its pictures as PNG and its numbers; return the page's path.

        Args:
            folder: must not hold anything but an earlier explanation, and that only with `overwrite`.
            overwrite: take the place of an earlier explanation.
        """
        from .page import save_page

        return save_page(self, Path(folder).expanduser(), overwrite=overwrite)
