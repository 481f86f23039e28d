"""Writers of predictions: CSV, JSON lines, annotated images and masks; written incrementally."""

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
from .documents import CocoWriter, VqaWriter
from .paths import NoImages
from .predict import Prediction, Predictions

FORMS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}  # by file extension
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # prefixes of spreadsheet formulas
MIN_SIDE = 160  # smallest side of annotated images


Writer = Callable[[Prediction], None]  # called with each prediction


class CsvWriter:
    """CSV with columns for the name, the task's answer, and the problem of a bad file.

    Texts that a spreadsheet would run as a formula get an apostrophe prefix; JSON lines keep names unchanged.

    Args:
        top: number of classes with columns.
    """

    def __init__(self, file: TextIO, presenter: Presenter, *, top: int) -> None:
        self.presenter, self.top = presenter, top
        self.rows = csv.writer(file)  # its \\r\\n makes it quote both letters in names
        head = presenter.table_head(top=top)
        self.blank = [""] * len(head)
        self.rows.writerow(["name", *map(_cell, head), "problem"])

    def __call__(self, prediction: Prediction) -> None:
        """Write a row, or several for answers with many parts."""
        answer = prediction.answer
        rows = [self.blank] if answer is None else self.presenter.table_rows(answer, top=self.top)
        for cells in rows:
            self.rows.writerow([_cell(prediction.name), *map(_cell, cells), plain(prediction.problem or "")])


def _cell(value: str | float) -> str:
    """Return a number, or a text that is not a formula."""
    return harmless(plain(value)) if isinstance(value, str) else f"{value:.6g}"


class JsonWriter:
    """One JSON object a line: name and the task's answer, or name and problem."""

    def __init__(self, file: TextIO, presenter: Presenter) -> None:
        self.file, self.presenter = file, presenter

    def __call__(self, prediction: Prediction) -> None:
        """Write one line."""
        record: dict[str, Any] = {"name": prediction.name}  # in ASCII: undecodable bytes stay as \udcXX
        if prediction.answer is not None:
            record |= to_json(self.presenter.line_record(prediction.answer))
        else:
            record["problem"] = prediction.problem
        self.file.write(json.dumps(record) + "\n")


class _PngFolder:
    """A folder of PNG files, created if missing; files are written atomically."""

    def __init__(self, folder: str | Path, flag: str) -> None:
        self.folder, self.count = Path(folder).expanduser(), 0
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{flag} {folder} is a file; choose a directory for the images")
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, image: Image.Image, stem: str) -> None:
        path = self.folder / f"{stem}.png"
        draft = path.with_name(f".{path.name}.part")
        image.save(draft, format="PNG")
        os.replace(draft, path)


class DrawWriter(_PngFolder):
    """A PNG for each image, named by number and image, with the answer drawn below it."""

    def __init__(self, folder: str | Path, presenter: Presenter) -> None:
        super().__init__(folder, "--draw")
        self.presenter = presenter

    def __call__(self, prediction: Prediction) -> None:
        """Draw one image; bad files are skipped."""
        number, self.count = self.count, self.count + 1
        if prediction.image is None or prediction.answer is None:
            return
        painted = draw(self.presenter.paint(prediction.image, prediction.answer), prediction.answer)
        self.save(painted, f"{number:07d}_{safe_stem(prediction.name)}")  # the number makes names unique


class MaskWriter(_PngFolder):
    """A PNG mask for each image, of its size, with class indices as values; numbered if names repeat.

    Args:
        folder: output folder, created if missing.
        outputs: class names, written as classes.txt.
    """

    def __init__(self, folder: str | Path, outputs: Sequence[str]) -> None:
        super().__init__(folder, "--masks")
        self.taken = set[str]()
        write_text(self.folder / "classes.txt", "".join(f"{plain(name)}\n" for name in outputs))

    def __call__(self, prediction: Prediction) -> None:
        """Write one mask; bad files are skipped."""
        number, self.count = self.count, self.count + 1
        if prediction.answer is None or prediction.answer.mask is None:
            return
        stem = safe_stem(prediction.name)
        if stem in self.taken:
            stem = f"{number:07d}_{stem}"
        self.taken.add(stem)
        self.save(mask_image(prediction.answer.mask), stem)


def safe_stem(name: str) -> str:
    """Return a file's name without folder and extension, in characters safe for any file system."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(plain(name)).stem)[:80]


def draw(pixels: np.ndarray, answer: Answer, *, side: int = 640) -> Image.Image:
    """Draw an answer below an image, with bars for probabilities and mask areas.

    Args:
        pixels: H, W, 3 uint8.
        side: largest longer side.
    """
    image = Image.fromarray(pixels)
    scale = min(side / max(image.size), max(1.0, MIN_SIDE / max(image.size)))
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
    """Truncate a text to a width; characters missing in the font are drawn as boxes."""
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
    """Return a text without terminal control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def harmless(text: str) -> str:
    """Return a cell that spreadsheets do not take for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """Open a file for writing, or standard output for None.

    The file is named `NAME.part` until the block ends without error, so an interrupted one keeps the lines written so
    far. Pipes and devices are written directly.
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
    """Numbers of files and of unreadable ones."""

    asked: int = 0
    bad: int = 0
    path: Path | None = None  # output file; None for standard output

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
    """Write predictions incrementally.

    The file is named `OUT.part` until all are written, and stays if the job is interrupted.

    Args:
        predictions: predictions of `predict`, with `keep` for drawing.
        out: output file, which is replaced at the end; None or "-" for standard output.
        form: "csv", "jsonl" or, for boxes, "coco", for VQAv2's questions "vqa"; default: by extension.
        top: number of classes with columns, at most the model's.
        draw: folder for annotated images; without `out` only these are written.
        masks: folder for masks, if the task has them; likewise.
        each: called with every prediction after it is written.
    """
    form, path = check_output(out, form=form)
    task, spec = predictions.task, predictions.spec
    presenter = task.presenter(spec)
    if masks is not None and not task.presenter.masks:
        raise ValueError(f"--masks has no effect: the task {task.name} predicts no masks; remove it")
    if form == "vqa" and task.reader.reads != "question":
        raise ValueError(f"--form vqa needs questions about images, which the task {task.name} does not read; use csv")
    if form == "coco" and not task.presenter.boxes:
        raise ValueError(f"--form coco needs boxes, which the task {task.name} does not predict; use csv or jsonl")
    started = _started(predictions)
    tally = Tally(path=path)
    with ExitStack() as stack:
        writers: list[Writer] = [] if draw is None else [DrawWriter(draw, presenter)]
        writers += [] if masks is None else [MaskWriter(masks, spec.outputs)]
        if out is not None or not writers:
            file = stack.enter_context(output(path))
            if form == "coco":
                writers.append(CocoWriter(file, spec.outputs))
            elif form == "vqa":
                writers.append(VqaWriter(file))
            else:
                writers.append(JsonWriter(file, presenter) if form == "jsonl" else CsvWriter(file, presenter, top=top))
        for prediction in started:
            for writer in writers:
                writer(prediction)
            tally.asked, tally.bad = tally.asked + 1, tally.bad + (prediction.problem is not None)
            each(prediction, tally)
        for writer in writers:
            if isinstance(writer, CocoWriter | VqaWriter):
                writer.finish()
    return tally


def check_output(out: str | Path | None, *, form: str | None = None) -> tuple[str, Path | None]:
    """Return output format and file; the default format depends on the extension, the file is None for stdout."""
    if form is not None and form not in (*FORMS.values(), "coco", "vqa"):
        raise ValueError(f"form={form!r}: expected one of {', '.join(dict.fromkeys(FORMS.values()))}, coco, vqa")
    if out is None or str(out) == "-":
        return form or "csv", None
    path = Path(out).expanduser()
    if path.is_dir():
        raise ValueError(f"--out {out} is a directory; give a file name")
    if not path.parent.is_dir():
        raise ValueError(f"--out {out}: no such directory {path.parent}; create it first")
    form = form or FORMS.get(path.suffix.lower())
    if form is None:
        raise ValueError(
            f"--out {out}: unknown file type; use a name that ends in .csv or .jsonl, or set the format with --form"
        )
    return form, path


def _started(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Compute the first prediction in advance, so that an early failure leaves no file."""
    stream = iter(predictions)
    for first in stream:
        return chain((first,), stream)
    raise NoImages(
        "no image found; give files, a directory with files that end in .jpg, .png, ..., or - for names on standard "
        "input"
    )
