"""Sources and targets of text classification."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...data.image import BadSample
from ...data.source import Sample, Source
from ...data.split import abbreviate
from ...data.targets import ClassTargets, require_classes


@dataclass(frozen=True)
class TextTargets(ClassTargets):
    """One class a text."""

    task = "text"
    noun = "classes"

    metric: str = "accuracy"  # primary metric: "accuracy" or "matthews"
    # options for tokenization: length and truncation
    how: dict[str, Any] = field(default_factory=dict)

    def require(self, where: str) -> None:
        """Refuse fewer than two classes, and classes without training samples."""
        require_classes(self.outputs, where)
        never = [name for name, count in zip(self.outputs, self.counts(), strict=True) if not count]
        if never:
            raise ValueError(
                f"{where} has no text of the classes {abbreviate(never)}; add some, or remove these class names"
            )


class TextSource(Source):
    """Texts in memory, named by prefix and row."""

    def __init__(self, texts: Sequence[tuple[str, ...]], targets: TextTargets, *, prefix: str) -> None:
        self.texts, self.targets, self.prefix = list(texts), targets, prefix
        self.rows = np.arange(len(self.texts))

    def name(self, index: int) -> str:
        """Return prefix and row of a text."""
        return f"{self.prefix}[{self.rows[index]}]"

    def read(self, index: int) -> np.ndarray:
        """Raise, since texts have no pixels."""
        raise BadSample(self.name(index), "it is a text and has no pixels")

    def text(self, index: int) -> tuple[str, ...]:
        """Return the one or two texts of a sample."""
        return self.texts[index]

    def held_by(self, index: int) -> str:
        """Return the texts as key, so that duplicates stay in one split."""
        return "\0".join(self.texts[index])

    def sample(self, index: int) -> Sample:
        """Return a sample."""
        inputs = dict(zip(("text", "pair"), self.texts[index], strict=False))
        return Sample(inputs, self.targets.read(index), self.name(index))

    def subset(self, indices: Sequence[int] | np.ndarray) -> "TextSource":
        """Return the source of some of the texts."""
        keep = np.asarray(indices, dtype=np.int64)
        part = copy.copy(self)
        part.texts, part.rows = [self.texts[index] for index in keep], self.rows[keep]
        part.targets = self.targets.subset(keep)
        return part

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts and targets."""
        digest = hashlib.sha256()
        self.targets.update(digest)
        for texts in self.texts:
            for text in texts:
                digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
            digest.update(b"\1")
        return digest.hexdigest()
