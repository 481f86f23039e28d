"""Questions about images that a model is asked: in tables, as lines, or on standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..data.image import BadSample, decode
from ..data.source import Sample
from ..data.spec import InputSpec
from ..tasks.opening import find_task
from ..tasks.text.tables import ENDINGS, read_columns
from ..tasks.text.tokens import TextError
from ..tasks.vqa.data import read_questions
from .texts import LINES, Read, read_lines

HOW = "give a table with the columns image and question, or lines with an image's path, a tab and a question"

Item = tuple[str, Path, str]  # name, image, question


class QuestionReader:
    """Finds questions and makes tensors of them and their images; what is wrong with one is an answer, not an error.

    Args:
        spec: of the model.
        max_pixels: a larger image is bad.
    """

    def __init__(self, spec: InputSpec, *, max_pixels: int) -> None:
        self.spec, self.kind, self.max_pixels = spec, find_task(spec.task), max_pixels

    def __call__(self, item: Item) -> Read:
        """Return an image and a question as one tensor."""
        name, path, question = item
        kind: Any = self.kind
        try:
            image = decode(path, name=name, max_pixels=self.max_pixels)
            packed = kind.pack_sample(Sample({"image": image, "text": question}, None, path.name), self.spec)
            return name, packed, None, (image.shape[0], image.shape[1]), None
        except BadSample as error:
            return name, None, None, (0, 0), error.reason
        except (TextError, MemoryError) as error:
            return name, None, None, (0, 0), str(error) or "there is not enough memory to decode it"

    def find(self, given: Iterable[str | Path], *, stdin: BinaryIO | None = None) -> Iterator[Item]:
        """Yield questions with their images; paths in a table are relative to it, others to where one is.

        Args:
            given: tables, files of lines (.txt), lines themselves, or `-` for lines on standard input.
            stdin: to read in the place of standard input.
        """
        for item in given:
            path = Path(item)
            if str(item) == "-":
                for name, line in read_lines(stdin or sys.stdin.buffer, "line"):
                    yield _parted(line, name)
            elif path.suffix.lower() in LINES and "\t" not in str(item):
                with path.open("rb") as file:
                    for name, line in read_lines(file, path.name):
                        yield _parted(line, name)
            elif path.suffix.lower() in ENDINGS and "\t" not in str(item):
                for row, (image, question) in enumerate(read_questions(read_columns(path), path), 1):
                    yield f"{path.name} {row}", path.parent / image, question
            else:
                yield _parted(str(item), str(item)[:80].replace("\t", " "))


def _parted(line: str, name: str) -> Item:
    image, tab, question = line.partition("\t")
    if not tab or not image.strip() or not question.strip():
        raise ValueError(f"{name!r} is no image with a question; {HOW}")
    return name, Path(image.strip()), question.strip()
