"""Ask a model about files and write what it says, with a count of what could not be read."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .paths import NoPictures
from .predict import Prediction, Predictions
from .writers import CsvWriter, DrawWriter, JsonWriter, MaskWriter, Writer, output

FORMS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}  # by the ending of a file


@dataclass
class Tally:
    """How many files were asked about, and how many of them could not be read.

    Args:
        asked: files.
        bad: of them.
        path: where the answers are written; None for standard output.
    """

    asked: int = 0
    bad: int = 0
    path: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether at least one file could be read."""
        return self.bad < self.asked


def write_predictions(
    predictions: Predictions,
    *,
    out: str | Path | None = None,
    form: str | None = None,
    top: int = 5,
    draw: str | Path | None = None,
    masks: str | Path | None = None,
    each: Callable[[Prediction, Tally], None] = lambda *_: None,
) -> Tally:
    """Write predictions as they come.

    A file is named `OUT.part` until all are written; what an interrupted job wrote stays there.

    Args:
        predictions: of `predict`, with `keep` if they are to be drawn.
        out: a file, which takes the place of one that is there once all is written; None or "-" for standard output.
        form: "csv" or "jsonl"; by the file's ending if not given.
        top: how many parts of an answer the table has columns for, where there are many; no more than the model has.
        draw: a folder for pictures with the answers drawn on them; without `out` these are all that is written.
        masks: a folder for masks, of a task that tells some; likewise.
        each: is told of every prediction once it is written.
    """
    form, path = check_output(out, form=form)
    task, spec = predictions.task, predictions.spec
    if masks is not None and not task.masks:
        raise ValueError(f"--masks was given; the task {task.name} tells no masks")
    begun = _begun(predictions)
    tally = Tally(path=path)
    with ExitStack() as stack:
        writers: list[Writer] = [] if draw is None else [DrawWriter(draw)]
        writers += [] if masks is None else [MaskWriter(masks, spec.outputs)]
        if out is not None or not writers:
            file = stack.enter_context(output(path))
            writers.append(JsonWriter(file, task) if form == "jsonl" else CsvWriter(file, task, spec, top=top))
        for prediction in begun:
            for writer in writers:
                writer(prediction)
            tally.asked, tally.bad = tally.asked + 1, tally.bad + (prediction.problem is not None)
            each(prediction, tally)
    return tally


def check_output(out: str | Path | None, *, form: str | None = None) -> tuple[str, Path | None]:
    """Return the form answers are written in and the file they go to, None for standard output.

    Args:
        out: what was named.
        form: what was asked for; by the file's ending if not given.
    """
    if form is not None and form not in FORMS.values():
        raise ValueError(f"form={form!r} was given; there are {', '.join(dict.fromkeys(FORMS.values()))}")
    if out is None or str(out) == "-":
        return form or "csv", None
    path = Path(out).expanduser()
    if path.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file")
    if not path.parent.is_dir():
        raise ValueError(f"--out {out} was given; there is no folder {path.parent}. Make it first")
    form = form or FORMS.get(path.suffix.lower())
    if form is None:
        raise ValueError(f"--out {out} was given; name a file that ends in .csv or .jsonl, or tell the form by --form")
    return form, path


def _begun(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Return the same predictions with the first already made, so that a bad start leaves no file behind."""
    stream = iter(predictions)
    for first in stream:
        return chain((first,), stream)
    raise NoPictures(
        "no picture was found; give files, a folder with files that end in .jpg, .png, ..., or - and names on "
        "standard input"
    )
