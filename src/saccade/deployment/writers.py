"""Where predictions go: a table, lines of JSON, pictures with the answer drawn on them; written as they come."""

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .predict import Prediction

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet run a cell
LEAST = 160  # pictures are enlarged to this side before something is drawn on them


class Writer(Protocol):
    """Takes predictions one after another."""

    def __call__(self, prediction: Prediction) -> None:
        """Write one."""


class CsvWriter:
    """A table: name, class, share, then the next classes, then what is wrong with a bad file.

    A name or class that a spreadsheet would run as a formula gets an apostrophe before it, the usual remedy; JSON lines
    hold names as they are.

    Args:
        file: to write to.
        top: how many classes there are columns for.
    """

    def __init__(self, file: TextIO, *, top: int) -> None:
        self.top, self.rows = top, csv.writer(file)  # its \\r\\n makes it quote both letters in names
        more = [part for n in range(2, top + 1) for part in (f"class_{n}", f"share_{n}")]
        self.rows.writerow(["name", "class", "share", *more, "problem"])

    def __call__(self, prediction: Prediction) -> None:
        """Write one row."""
        cells: list[str] = []
        for name, share in prediction.answers[: self.top]:
            cells += [harmless(plain(name)), f"{share:.6g}"]
        cells += [""] * (2 * self.top - len(cells))
        self.rows.writerow([harmless(plain(prediction.name)), *cells, plain(prediction.problem or "")])


class JsonWriter:
    """One JSON object a line: {"name", "answers": [{"class", "share"}]} or {"name", "problem"}.

    Args:
        file: to write to.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def __call__(self, prediction: Prediction) -> None:
        """Write one line."""
        told: dict[str, Any] = {"name": prediction.name}  # ASCII in the file: odd bytes of a name stay as \udcXX
        if prediction.problem is None:
            told["answers"] = [{"class": name, "share": round(share, 6)} for name, share in prediction.answers]
        else:
            told["problem"] = prediction.problem
        self.file.write(json.dumps(told) + "\n")


class DrawWriter:
    """A PNG a picture, named after it and its number, with the answers and their shares drawn below it.

    Args:
        folder: to write to; made if it is not there.
        side: the longer side is brought to at most this.
    """

    def __init__(self, folder: str | Path, *, side: int = 640) -> None:
        self.folder, self.side, self.count = Path(folder).expanduser(), side, 0
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"--draw {folder} is a file; name a folder for the pictures")
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, prediction: Prediction) -> None:
        """Draw one picture; a bad file gives none."""
        number, self.count = self.count, self.count + 1
        if prediction.picture is None or not prediction.answers:
            return
        # The number keeps pictures of one name in different folders apart.
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(plain(prediction.name)).stem)[:80]
        path = self.folder / f"{number:07d}_{stem}.png"
        draft = path.with_name(f".{path.name}.part")
        draw(prediction.picture, prediction.answers, side=self.side).save(draft, format="PNG")
        os.replace(draft, path)


def draw(picture: np.ndarray, answers: tuple[tuple[str, float], ...], *, side: int = 640) -> Image.Image:
    """Return a picture with the answers in words and bars below it.

    Args:
        picture: H, W, 3 uint8.
        answers: classes and shares, likeliest first.
        side: the longer side is brought to at most this.
    """
    image = Image.fromarray(picture)
    scale = min(side / max(image.size), max(1.0, LEAST / max(image.size)))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.BICUBIC if scale < 1 else Image.Resampling.NEAREST)
    line = max(12, image.width // 30)
    font, width = ImageFont.load_default(size=line), max(image.width, 12 * line)
    step = round(1.6 * line)
    sheet = Image.new("RGB", (width, image.height + step * len(answers) + line // 2), "white")
    sheet.paste(image, ((width - image.width) // 2, 0))
    pen = ImageDraw.Draw(sheet)
    for place, (name, share) in enumerate(answers):
        top = image.height + line // 4 + place * step
        pen.rectangle((0, top, round(share * (width - 1)), top + step - 3), fill="#9ec5e8" if place == 0 else "#dde8f2")
        number = f"{share:.1%}"
        taken = pen.textlength(number, font=font)
        pen.text((width - taken - line / 3, top + line / 6), number, fill="black", font=font)
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
