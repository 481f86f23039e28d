"""Predict any number of files, in batches and with bounded memory."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..data.image import MAX_PIXELS, BadSample, decode
from ..data.spec import InputSpec
from ..tasks import Answer, Task
from .paths import find_paths
from .predictor import Predictor, each_row, open_predictor
from .texts import QuestionReader, ReadInput, TextReader

MAX_IMAGE_SIDE = 640  # longer side of kept images


@dataclass(frozen=True)
class Prediction:
    """Prediction for one file.

    Args:
        name: name of the file.
        answer: the answer; None for a bad file.
        problem: reason if the file is bad; else None.
        image: pixels, H, W, 3 uint8, at most 640 a side, if kept.
    """

    name: str
    answer: Answer | None
    problem: str | None = None
    image: np.ndarray | None = None

    @property
    def answers(self) -> tuple[tuple[str, float], ...]:
        """The parts of the answer with a probability, such as classes, most probable first."""
        rows = () if self.answer is None else self.answer.rows
        return tuple((name, share) for name, _, share in rows if share is not None)


class Predictions(Iterator[Prediction]):
    """Iterator of predictions, computed lazily."""

    def __init__(self, stream: Generator[Prediction, None, None], task: type[Task], spec: InputSpec) -> None:
        self.stream, self.task, self.spec = stream, task, spec

    def __next__(self) -> Prediction:
        """Return the next prediction."""
        return next(self.stream)

    def close(self) -> None:
        """Stop reading files."""
        self.stream.close()


def predict(
    target: str | Path | Predictor,
    images: str | Path | Iterable[str | Path],
    *,
    batch_size: int = 32,
    top: int = 5,
    workers: int = 4,
    device: str = "cpu",
    kernels: str = "auto",
    null: bool = False,
    keep: bool = False,
    max_pixels: int = MAX_PIXELS,
    trust: bool = False,
) -> Predictions:
    """Yield predictions for files, in order; bad files get a problem instead.

    Only a few batches are in memory at a time.

    Args:
        target: run, exported file, timm model name, NAME@FILE, or an open predictor.
        images: one or several files, folders, or "-" for names on standard input. For text models: texts, files of
            lines, tables with the columns of the training, or "-" for lines. For visual question answering: tables of
            image and question, or lines of both with a tab between.
        batch_size: batch size.
        top: number of classes in an answer.
        workers: threads that read and decode.
        device: cpu, cuda, cuda:1, ...
        kernels: "auto", "off", or names of `saccade kernels`, "-NAME" for all but one.
        null: names on standard input are separated by zero bytes.
        keep: include images, of at most 640 pixels a side, in predictions.
        max_pixels: larger images are bad.
        trust: allow `.pt2` files, which can run arbitrary code.
    """
    for name, value in (("batch_size", batch_size), ("top", top), ("workers", workers)):
        if value < 1:
            raise ValueError(f"{name}={value}: it must be 1 or more")
    given = [images] if isinstance(images, str | Path) else images
    predictor = target
    if not isinstance(predictor, Predictor):
        predictor = open_predictor(predictor, device=device, kernels=kernels, trust=trust)
    reader: TextReader | QuestionReader | _Reader
    reads = predictor.task.reader.reads
    if keep and reads != "image":
        raise ValueError(f"--draw needs images, but the model reads {reads}s; remove it")
    if reads == "image":
        reader = _Reader(predictor, keep=keep, max_pixels=max_pixels)
        items: Iterator[Any] = find_paths(given, null=null)
    else:
        reader = (
            TextReader(predictor.spec) if reads == "text" else QuestionReader(predictor.spec, max_pixels=max_pixels)
        )
        items = reader.find(given)
    stream = _stream(predictor, reader, items, batch_size=batch_size, top=top, workers=workers)
    return Predictions(stream, predictor.task, predictor.spec)


def _stream(
    predictor: Predictor,
    reader: Callable[[Any], ReadInput],
    paths: Iterator[Any],
    *,
    batch_size: int,
    top: int,
    workers: int,
) -> Generator[Prediction, None, None]:
    """Predict in order, reading one batch ahead."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    ahead: deque[Future[ReadInput]] = deque()
    try:
        while True:
            ahead.extend(pool.submit(reader, path) for path in islice(paths, 2 * batch_size + workers - len(ahead)))
            if not ahead:
                return
            yield from _ask(predictor, [ahead.popleft().result() for _ in range(min(batch_size, len(ahead)))], top)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ask(predictor: Predictor, batch: list[ReadInput], top: int) -> Iterator[Prediction]:
    codec = predictor.codec
    framed = [one.framed for one in batch if one.framed is not None]
    rows = iter(each_row(predictor, framed))
    for one in batch:
        answer = None
        if one.framed is not None:
            answer = predictor.presenter.describe(codec.unframe(next(rows), one.size), top=top)
        yield Prediction(one.name, answer, one.problem, one.whole)


class _Reader:
    """Reads and frames a file; errors become the file's problem."""

    def __init__(self, predictor: Predictor, *, keep: bool, max_pixels: int) -> None:
        self.framing, self.keep, self.max_pixels = predictor.framing, keep, max_pixels

    def __call__(self, path: Path) -> ReadInput:
        name = str(path)
        try:
            whole = decode(path, name=name, max_pixels=self.max_pixels)
            kept = _small(whole) if self.keep else None
            return ReadInput(name, self.framing(whole), kept, (whole.shape[0], whole.shape[1]))
        except BadSample as error:
            return ReadInput(name, problem=error.reason)
        except MemoryError:
            return ReadInput(name, problem="there is not enough memory to decode it")
        except ValueError as error:  # the name has a zero byte
            return ReadInput(name, problem=f"its name cannot be opened ({error})")


def _small(pixels: np.ndarray) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_IMAGE_SIDE, MAX_IMAGE_SIDE))
    return np.array(image)
