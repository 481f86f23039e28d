"""Where predictions go: a table, lines of JSON, images with the answer drawn on them; written as they come."""

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..report.plain import to_json
from ..support.files import write_text
from ..tasks import Answer, Presenter
from ..tasks.segmentation.drawing import mask_image
from .paths import NoImages
from .predict import Prediction, Predictions

FORMS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}  # by the ending of a file
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet run a cell
LEAST = 160  # images are enlarged to this side before something is drawn on them


Writer = Callable[[Prediction], None]  # takes predictions one after another


class CsvWriter:
    """A table: the name, what the task makes columns of, then what is wrong with a bad file.

    A text that a spreadsheet would run as a formula gets an apostrophe before it, the usual remedy; JSON lines hold
    names as they are.

    Args:
        top: how many parts of an answer there are columns for, where there are many.
    """

    def __init__(self, file: TextIO, presenter: Presenter, *, top: int) -> None:
        self.presenter, self.top = presenter, top
        self.rows = csv.writer(file)  # its \\r\\n makes it quote both letters in names
        head = presenter.table_head(top=top)
        self.blank = [""] * len(head)
        self.rows.writerow(["name", *map(_cell, head), "problem"])

    def __call__(self, prediction: Prediction) -> None:
        """Write a row, or one for each part of an answer."""
        answer = prediction.answer
        rows = [self.blank] if answer is None else self.presenter.table_rows(answer, top=self.top)
        for cells in rows:
            self.rows.writerow([_cell(prediction.name), *map(_cell, cells), plain(prediction.problem or "")])


def _cell(value: str | float) -> str:
    """Return a text that no spreadsheet runs, or a number."""
    return harmless(plain(value)) if isinstance(value, str) else f"{value:.6g}"


class JsonWriter:
    """One JSON object a line: {"name", and what the task says of an answer} or {"name", "problem"}."""

    def __init__(self, file: TextIO, presenter: Presenter) -> None:
        self.file, self.presenter = file, presenter

    def __call__(self, prediction: Prediction) -> None:
        """Write one line."""
        record: dict[str, Any] = {"name": prediction.name}  # ASCII in the file: odd bytes of a name stay as \udcXX
        if prediction.answer is not None:
            record |= to_json(self.presenter.line_record(prediction.answer))
        else:
            record["problem"] = prediction.problem
        self.file.write(json.dumps(record) + "\n")


class CocoWriter:
    """One JSON document as COCO has it: images, categories (ids from 1), objects with scores; bad files as `problems`.

    Objects are written as they come, and `finish` adds the rest.
    """

    def __init__(self, file: TextIO, outputs: Sequence[str]) -> None:
        self.file, self.outputs, self.count = file, outputs, 0
        self.images: list[dict[str, Any]] = []
        self.problems: list[dict[str, Any]] = []
        file.write('{"annotations": [')

    def __call__(self, prediction: Prediction) -> None:
        """Write the objects of one image."""
        if prediction.answer is None:
            self.problems.append({"file_name": prediction.name, "problem": prediction.problem})
            return
        record = prediction.answer.record
        number, (height, width) = len(self.images) + 1, record["size"]
        self.images.append({"id": number, "file_name": prediction.name, "height": height, "width": width})
        for one in record["objects"]:
            left, top, right, bottom = one["box"]
            box = [left, top, round(right - left, 2), round(bottom - top, 2)]
            kept = {"id": self.count + 1, "image_id": number, "category_id": one["index"] + 1, "score": one["score"]}
            kept |= {"bbox": box, "area": round(box[2] * box[3], 2), "iscrowd": 0}
            kept |= {"segmentation": one["segmentation"]} if "segmentation" in one else {}
            self.file.write((",\n" if self.count else "\n") + json.dumps(to_json(kept)))
            self.count += 1

    def finish(self) -> None:
        """Write what the objects belong to."""
        categories = [{"id": place, "name": name} for place, name in enumerate(self.outputs, 1)]
        rest = {"images": self.images, "categories": categories, "problems": self.problems}
        self.file.write("],\n" + json.dumps(rest)[1:] + "\n")


class _PngFolder:
    """A folder of PNG files, made if it is not there; each file is whole or not there."""

    def __init__(self, folder: str | Path, flag: str) -> None:
        self.folder, self.count = Path(folder).expanduser(), 0
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{flag} {folder} is a file; name a folder for the images")
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, image: Image.Image, stem: str) -> None:
        path = self.folder / f"{stem}.png"
        draft = path.with_name(f".{path.name}.part")
        image.save(draft, format="PNG")
        os.replace(draft, path)


class DrawWriter(_PngFolder):
    """A PNG an image, named after it and its number, with the answer's parts and their probabilities drawn below it."""

    def __init__(self, folder: str | Path, presenter: Presenter) -> None:
        super().__init__(folder, "--draw")
        self.presenter = presenter

    def __call__(self, prediction: Prediction) -> None:
        """Draw one image; a bad file gives none."""
        number, self.count = self.count, self.count + 1
        if prediction.image is None or prediction.answer is None:
            return
        painted = draw(self.presenter.paint(prediction.image, prediction.answer), prediction.answer)
        self.save(painted, f"{number:07d}_{safe_stem(prediction.name)}")  # the number keeps images of one name apart


class MaskWriter(_PngFolder):
    """A PNG an image, of its size, whose values are the classes; named after it, and after its number if need be.

    Args:
        folder: to write to; made if it is not there.
        outputs: names of the classes, written beside the masks as classes.txt.
    """

    def __init__(self, folder: str | Path, outputs: Sequence[str]) -> None:
        super().__init__(folder, "--masks")
        self.taken = set[str]()
        write_text(self.folder / "classes.txt", "".join(f"{plain(name)}\n" for name in outputs))

    def __call__(self, prediction: Prediction) -> None:
        """Write one mask; a bad file gives none."""
        number, self.count = self.count, self.count + 1
        if prediction.answer is None or prediction.answer.mask is None:
            return
        stem = safe_stem(prediction.name)
        if stem in self.taken:
            stem = f"{number:07d}_{stem}"
        self.taken.add(stem)
        self.save(mask_image(prediction.answer.mask), stem)


def safe_stem(name: str) -> str:
    """Return a file's name without folder and ending, in letters that no file system minds."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(plain(name)).stem)[:80]


def draw(pixels: np.ndarray, answer: Answer, *, side: int = 640) -> Image.Image:
    """Return an image with the parts of an answer below it, with bars for probabilities and for areas of masks.

    Args:
        pixels: H, W, 3 uint8.
        side: the longer side is brought to at most this.
    """
    image = Image.fromarray(pixels)
    scale = min(side / max(image.size), max(1.0, LEAST / max(image.size)))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.BICUBIC if scale < 1 else Image.Resampling.NEAREST)
    line = max(12, image.width // 30)
    font, width = ImageFont.load_default(size=line), max(image.width, 12 * line)
    step = round(1.6 * line)
    sheet = Image.new("RGB", (width, image.height + step * len(answer.rows) + line // 2), "white")
    sheet.paste(image, ((width - image.width) // 2, 0))
    pen = ImageDraw.Draw(sheet)
    for place, (name, text, share) in enumerate(answer.rows):
        top = image.height + line // 4 + place * step
        if share is not None and math.isfinite(share):
            bar = (0, top, round(share * (width - 1)), top + step - 3)
            pen.rectangle(bar, fill=answer.colours.get(name) or ("#9ec5e8" if name in answer.said else "#dde8f2"))
        text = _fitted(pen, text, font, width / 2) if text else ""
        taken = pen.textlength(text, font=font)
        pen.text((width - taken - line / 3, top + line / 6), text, fill="black", font=font)
        pen.text((line / 3, top + line / 6), _fitted(pen, name, font, width - taken - line), fill="black", font=font)
    return sheet


def _fitted(pen: ImageDraw.ImageDraw, text: str, font: Any, width: float) -> str:
    """Return a text cut to a width; what the built-in letters lack is drawn as a box."""
    text = " ".join(plain(text)[:200].split()) or "(no name)"
    if pen.textlength(text, font=font) <= width:
        return text
    while len(text) > 1 and pen.textlength(text + "...", font=font) > width:
        text = text[:-1]
    return text + "..."


def plain(text: str) -> str:
    """Return a text that UTF-8 can write: bytes of a name that are none become \\udcNN."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    """Return a text that does nothing to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def harmless(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """Open a file to be written, or standard output for None.

    The file is named `NAME.part` until the block ends well; one that is interrupted stays under that name, with every
    line that was written. A pipe or a device is written to as it is.
    """
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    special = path.exists() and not path.is_file()
    draft = path if special else path.with_name(f"{path.name}.part")
    with open(draft, "w", newline="", encoding="utf-8") as file:
        yield file
    if not special:
        os.replace(draft, path)


@dataclass
class Tally:
    """How many files were asked about, and how many of them could not be read."""

    asked: int = 0
    bad: int = 0
    path: Path | None = None  # where the answers are written; None for standard output

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
        form: "csv", "jsonl" or, of boxes, "coco"; by the file's ending if not given.
        top: how many parts of an answer the table has columns for, where there are many; no more than the model has.
        draw: a folder for images with the answers drawn on them; without `out` these are all that is written.
        masks: a folder for masks, of a task that tells some; likewise.
        each: is told of every prediction once it is written.
    """
    form, path = check_output(out, form=form)
    task, spec = predictions.task, predictions.spec
    presenter = task.presenter(spec)
    if masks is not None and not task.presenter.masks:
        raise ValueError(f"--masks was given, but the task {task.name} predicts no masks; leave it out")
    if form == "coco" and not task.presenter.boxes:
        raise ValueError(f"--form coco was given, but the task {task.name} predicts no boxes; use csv or jsonl")
    started = _started(predictions)
    tally = Tally(path=path)
    with ExitStack() as stack:
        writers: list[Writer] = [] if draw is None else [DrawWriter(draw, presenter)]
        writers += [] if masks is None else [MaskWriter(masks, spec.outputs)]
        if out is not None or not writers:
            file = stack.enter_context(output(path))
            if form == "coco":
                writers.append(CocoWriter(file, spec.outputs))
            else:
                writers.append(JsonWriter(file, presenter) if form == "jsonl" else CsvWriter(file, presenter, top=top))
        for prediction in started:
            for writer in writers:
                writer(prediction)
            tally.asked, tally.bad = tally.asked + 1, tally.bad + (prediction.problem is not None)
            each(prediction, tally)
        for writer in writers:
            if isinstance(writer, CocoWriter):
                writer.finish()
    return tally


def check_output(out: str | Path | None, *, form: str | None = None) -> tuple[str, Path | None]:
    """Return the form of answers, by the ending if none is named, and their file, None for standard output."""
    if form is not None and form not in (*FORMS.values(), "coco"):
        raise ValueError(f"form={form!r} was given; there are {', '.join(dict.fromkeys(FORMS.values()))}, coco")
    if out is None or str(out) == "-":
        return form or "csv", None
    path = Path(out).expanduser()
    if path.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file")
    if not path.parent.is_dir():
        raise ValueError(f"--out {out} was given, but there is no directory {path.parent}; create it first")
    form = form or FORMS.get(path.suffix.lower())
    if form is None:
        raise ValueError(
            f"--out {out} was given; name a file that ends in .csv or .jsonl, or set the format with --form"
        )
    return form, path


def _started(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Return the same predictions with the first already made, so that a bad start leaves no file behind."""
    stream = iter(predictions)
    for first in stream:
        return chain((first,), stream)
    raise NoImages(
        "no image was found; give files, a folder with files that end in .jpg, .png, ..., or - and names on "
        "standard input"
    )
