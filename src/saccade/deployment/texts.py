"""Texts that a model is asked about: given themselves, as lines, in tables, or on standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from ..data.spec import InputSpec
from ..tasks.opening import find_task
from ..tasks.text.tables import ENDINGS, read_columns
from ..tasks.text.tokens import TextError

LINES = (".txt", ".text", ".lines")
LONGEST = 2**20  # bytes of a line
NAME = 80  # characters of a text that is its own name

Item = tuple[str, tuple[str, ...]]  # name, one or two texts
Read = tuple[str, Tensor | None, np.ndarray | None, tuple[int, int], str | None]  # as of images


class TextReader:
    """Finds texts and makes tokens of them; what is wrong with one is an answer, not an error.

    Args:
        spec: of the model.
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec, self.kind = spec, find_task(spec.task)
        self.columns: list[str] = spec.extra["columns"]

    def __call__(self, item: Item) -> Read:
        """Return a text as tokens."""
        name, texts = item
        try:
            kind: Any = self.kind
            return name, kind.pack_text(texts, self.spec, name=name), None, (0, 0), None
        except TextError as error:
            return name, None, None, (0, 0), str(error)

    def find(self, given: Iterable[str | Path], *, stdin: BinaryIO | None = None) -> Iterator[Item]:
        """Yield texts with their names.

        Args:
            given: texts, `-`, or files: of lines (.txt), or tables with the columns the model was trained on. In a line
                the two texts of a pair are parted by a tab.
            stdin: to read in the place of standard input.
        """
        for item in given:
            path = Path(item)
            ending = path.suffix.lower()
            if str(item) == "-":
                yield from self._lines(stdin or sys.stdin.buffer, "line")
            elif ending in LINES and (path.exists() or " " not in str(item)):
                with path.open("rb") as file:
                    yield from self._lines(file, path.name)
            elif ending in ENDINGS and (path.exists() or " " not in str(item)):
                yield from self._table(path)
            else:
                yield str(item)[:NAME], self._parted(str(item))

    def _lines(self, file: BinaryIO, name: str) -> Iterator[Item]:
        for number, line in read_lines(file, name):
            yield number, self._parted(line)

    def _table(self, path: Path) -> Iterator[Item]:
        columns = read_columns(path)
        known = {name.strip().lower(): name for name in columns}
        missing = [name for name in self.columns if name.lower() not in known]
        if missing:
            raise ValueError(
                f"{path} has the columns {', '.join(columns)}; the model was trained on {', '.join(self.columns)}: "
                "rename them, or give lines"
            )
        rows = zip(*(columns[known[name.lower()]] for name in self.columns), strict=True)
        for number, texts in enumerate(rows, 1):
            yield f"{path.name} {number}", texts

    def _parted(self, text: str) -> tuple[str, ...]:
        return tuple(text.split("\t", 1)) if len(self.columns) == 2 else (text,)


def read_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file that are not blank, each with a name: the file's and its number."""
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:
            raise ValueError(f"line {number} of {name} has {LONGEST:,} bytes or more; write one text a line")
        # Bytes that are no UTF-8 become halves of letters, which are refused with the text's name.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").rstrip("\r\n")
        if text.strip():
            yield f"{name} {number}", text
