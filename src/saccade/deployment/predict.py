"""Ask a model about files: in batches, with bounded memory, whatever their number."""

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
from .predictor import Predictor, open_predictor
from .texts import QuestionReader, Read, TextReader

KEPT = 640  # longer side of the images that are kept


@dataclass(frozen=True)
class Prediction:
    """What a model says of one file.

    Args:
        name: of the file, as it was found.
        answer: what it says; None for a bad file.
        problem: why a file could not be asked about, in plain words; None for a good one.
        image: its pixels, H, W, 3 uint8, at most 640 a side, if they were to be kept.
    """

    name: str
    answer: Answer | None
    problem: str | None = None
    image: np.ndarray | None = None

    @property
    def answers(self) -> tuple[tuple[str, float], ...]:
        """The parts of the answer that have a share, such as the likeliest classes, likeliest first."""
        rows = () if self.answer is None else self.answer.rows
        return tuple((name, share) for name, _, share in rows if share is not None)


class Predictions(Iterator[Prediction]):
    """Predictions one after another, made as they are asked for."""

    def __init__(self, stream: Generator[Prediction, None, None], task: type[Task], spec: InputSpec) -> None:
        self.stream, self.task, self.spec = stream, task, spec

    def __next__(self) -> Prediction:
        """Return the next one."""
        return next(self.stream)

    def close(self) -> None:
        """Break off: no further file is read."""
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
    """Yield what a model says of files, in the order they are found, a bad one with its problem.

    At most a few batches are held at a time, so a million files take the memory of a hundred.

    Args:
        target: a run, a file that `saccade export` wrote, a timm model's name, NAME@FILE, or an open predictor.
        images: files, folders, or "-" for a list on standard input; one or several. Of a model that reads texts:
            the texts themselves, files of lines, tables with the columns it was trained on, or "-" for lines. Of one
            that answers questions about images: tables with image and question, or lines with a tab between them.
        batch_size: images asked together.
        top: how many parts of an answer to name, where there are many, such as classes.
        workers: threads that read and decode.
        device: cpu, cuda, cuda:1, ...
        kernels: "auto", "off", or names of `saccade kernels`, "-NAME" for all but one.
        null: names on standard input end with a zero byte.
        keep: keep the images, brought to at most 640 pixels a side, in the predictions.
        max_pixels: a larger image is bad.
        trust: open a `.pt2` file, which is a program.
    """
    for name, value in (("batch_size", batch_size), ("top", top), ("workers", workers)):
        if value < 1:
            raise ValueError(f"{name}={value} was given; it is 1 or more")
    given = [images] if isinstance(images, str | Path) else images
    predictor = target
    if not isinstance(predictor, Predictor):
        predictor = open_predictor(predictor, device=device, kernels=kernels, trust=trust)
    reader: TextReader | QuestionReader | _Reader
    reads = predictor.task.reader.reads
    if keep and reads != "image":
        raise ValueError(f"--draw was given, but the model reads {reads}s; leave it out")
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
    reader: Callable[[Any], Read],
    paths: Iterator[Any],
    *,
    batch_size: int,
    top: int,
    workers: int,
) -> Generator[Prediction, None, None]:
    """Read ahead by one batch and what the threads have in hand, ask, and answer in order."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    ahead: deque[Future[Read]] = deque()
    try:
        while True:
            ahead.extend(pool.submit(reader, path) for path in islice(paths, 2 * batch_size + workers - len(ahead)))
            if not ahead:
                return
            yield from _ask(predictor, [ahead.popleft().result() for _ in range(min(batch_size, len(ahead)))], top)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ask(predictor: Predictor, batch: list[Read], top: int) -> Iterator[Prediction]:
    codec = predictor.codec
    framed = [one.framed for one in batch if one.framed is not None]
    rows = iter(predictor.rows(codec.stack(framed)) if framed else ())
    for one in batch:
        answer = None
        if one.framed is not None:
            answer = predictor.presenter.describe(codec.unframe(next(rows), one.size), top=top)
        yield Prediction(one.name, answer, one.problem, one.whole)


class _Reader:
    """Reads one file and frames it; what is wrong with it is an answer, not an error."""

    def __init__(self, predictor: Predictor, *, keep: bool, max_pixels: int) -> None:
        self.framing, self.keep, self.max_pixels = predictor.framing, keep, max_pixels

    def __call__(self, path: Path) -> Read:
        name = str(path)
        try:
            whole = decode(path, name=name, max_pixels=self.max_pixels)
            kept = _small(whole) if self.keep else None
            return Read(name, self.framing(whole), kept, (whole.shape[0], whole.shape[1]))
        except BadSample as error:
            return Read(name, problem=error.reason)
        except MemoryError:
            return Read(name, problem="there is not enough memory to decode it")
        except ValueError as error:  # a name with a zero byte
            return Read(name, problem=f"its name cannot be opened ({error})")


def _small(pixels: np.ndarray) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.thumbnail((KEPT, KEPT))
    return np.array(image)
