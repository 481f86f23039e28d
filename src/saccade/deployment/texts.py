"""Inputs of text and question models: from files and from requests."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from torch import Tensor

from ..data.image import BadSample, decode
from ..data.source import Sample
from ..data.spec import InputSpec
from ..tasks.opening import find_task
from ..tasks.text.tables import ENDINGS, read_columns
from ..tasks.text.tokens import TextError
from ..tasks.vqa.data import read_questions
from ..tasks.vqa.official import QUESTIONS, read_questions_of
from .limits import Refusal
from .predictor import Predictor

FIELDS = ("text", "pair")  # form fields: one text, or two
LINES = (".txt", ".text", ".lines")
LONGEST = 2**20  # longest line in bytes
MAX_NAME = 80  # most characters of a text as its own name

Item = tuple[str, tuple[str, ...]]  # name, one or two texts
Question = tuple[str, Path, str]  # name, image, question
HOW = "give a table with the columns image and question, or lines with an image's path, a tab and a question"


class ReadInput(NamedTuple):
    """An input that was read, or the problem with it."""

    name: str
    framed: Tensor | None = None  # the model's input
    whole: np.ndarray | None = None  # a kept image
    size: tuple[int, int] = (0, 0)  # original height and width of an image
    problem: str | None = None  # problem, if any


class TextReader:
    """Finds and tokenizes texts."""

    def __init__(self, spec: InputSpec) -> None:
        self.spec, self.kind = spec, find_task(spec.task)
        self.columns: list[str] = spec.extra["columns"]

    def __call__(self, item: Item) -> ReadInput:
        """Tokenize a text."""
        name, texts = item
        kind: Any = self.kind
        try:
            return ReadInput(name, kind.codec(self.spec).pack_text(texts, name=name))
        except TextError as error:
            return ReadInput(name, problem=str(error))

    def find(self, given: Iterable[str | Path]) -> Iterator[Item]:
        """Yield texts with their names.

        Args:
            given: texts, `-`, files of lines (.txt), or tables with the columns of the training. The two texts of a
                pair are separated by a tab.
        """
        for name, found in find_lines(given, between=" "):
            if isinstance(found, Path):
                yield from self._table(found)
            else:
                yield name, tuple(found.split("\t", 1)) if len(self.columns) == 2 else (found,)

    def _table(self, path: Path) -> Iterator[Item]:
        columns = read_columns(path)
        known = {name.strip().lower(): name for name in columns}
        missing = [name for name in self.columns if name.lower() not in known]
        if missing:
            raise ValueError(
                f"{path} has the columns {', '.join(columns)}; the model was trained on {', '.join(self.columns)}; "
                "rename the columns, or give lines"
            )
        rows = zip(*(columns[known[name.lower()]] for name in self.columns), strict=True)
        for number, texts in enumerate(rows, 1):
            yield f"{path.name} {number}", texts


class QuestionReader:
    """Finds questions with images and encodes them."""

    def __init__(self, spec: InputSpec, *, max_pixels: int) -> None:
        self.spec, self.kind, self.max_pixels = spec, find_task(spec.task), max_pixels

    def __call__(self, item: Question) -> ReadInput:
        """Encode image and question as one tensor."""
        name, path, question = item
        kind: Any = self.kind
        try:
            image = decode(path, name=name, max_pixels=self.max_pixels)
            packed = kind.codec(self.spec).pack_sample(Sample({"image": image, "text": question}, None, path.name))
            return ReadInput(name, packed, size=(image.shape[0], image.shape[1]))
        except BadSample as error:
            return ReadInput(name, problem=error.reason)
        except (TextError, MemoryError) as error:
            return ReadInput(name, problem=str(error) or "there is not enough memory to decode it")

    def find(self, given: Iterable[str | Path]) -> Iterator[Question]:
        """Yield questions with image paths; paths in a table are relative to it, others to the working directory.

        Args:
            given: tables, VQAv2's files of questions, files of lines (.txt), lines, or `-` for lines on standard input.
        """
        for item in given:
            if str(item).endswith(QUESTIONS):
                yield from ((str(number), image, asked) for number, image, asked in read_questions_of(Path(item)))
            else:
                yield from self._find_one(item)

    def _find_one(self, item: str | Path) -> Iterator[Question]:
        for name, found in find_lines([item], between="\t"):
            if isinstance(found, Path):
                for row, (image, question) in enumerate(read_questions(read_columns(found), found), 1):
                    yield f"{name} {row}", found.parent / image, question
                continue
            shown, (image, tab, question) = name.replace("\t", " "), found.partition("\t")
            if not tab or not image.strip() or not question.strip():
                raise ValueError(f"{shown!r} is not an image with a question; {HOW}")
            yield shown, Path(image.strip()), question.strip()


def find_lines(given: Iterable[str | Path], *, between: str) -> Iterator[tuple[str, str | Path]]:
    """Yield named lines, and paths of tables: given ones, lines of files, and of standard input for `-`.

    Args:
        between: separator in given lines; an argument that contains it is a file only if that exists.
    """
    for item in given:
        path, text = Path(item), str(item)
        ending = path.suffix.lower()
        is_file = ending in (*LINES, *ENDINGS) and (between not in text or os.path.exists(path))
        if text == "-":
            yield from read_lines(sys.stdin.buffer, "line")
        elif is_file and ending in LINES:
            with path.open("rb") as file:
                yield from read_lines(file, path.name)
        else:
            yield (path.name, path) if is_file else (text[:MAX_NAME], text)


def read_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    """Yield the non-blank lines of a file, named by file and line number."""
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:
            raise ValueError(f"line {number} of {name} has {LONGEST:,} bytes or more; write one text per line")
        # Invalid UTF-8 becomes surrogates, which are refused with the text's name.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").rstrip("\r\n")
        if text.strip():
            yield f"{name} {number}", text


def read_text(fields: Mapping[str, str], predictor: Predictor) -> tuple[str, ...]:
    """Return the one or two texts of a request, or the question about an image."""
    wanted = FIELDS[: len(predictor.spec.extra.get("columns", ["question"]))]
    missing = [name for name in wanted if not fields.get(name)]
    if missing:
        raise Refusal(422, f"{predictor.name} reads {' and '.join(wanted)}; {' and '.join(missing)} is empty")
    extra = [name for name in FIELDS if fields.get(name) and name not in wanted]
    if extra:
        raise Refusal(422, f"{predictor.name} reads one text; remove {extra[0]}")
    return tuple(fields[name] for name in wanted)


def pack(predictor: Predictor, pixels: np.ndarray | None, texts: tuple[str, ...] = ()) -> Tensor:
    """Encode a model's input: an image, H, W, 3, texts, or both as one tensor.

    Invalid texts raise TextError.
    """
    kind: Any = predictor.task
    if kind.reader.reads == "text":
        return kind.codec(predictor.spec).pack_text(texts, name="the text")
    assert pixels is not None
    if kind.reader.reads == "question":
        return kind.codec(predictor.spec).pack_sample(Sample({"image": pixels, "text": texts[0]}, None, "the question"))
    return predictor.framing(pixels)
