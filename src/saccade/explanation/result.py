"""The result of `explain`, and its folder: page, PNG images, JSON numbers."""

import json
from pathlib import Path
from typing import Any

from PIL import Image

from ..report.page import show_page
from ..support.files import OwnFolder, read_record, whole_folder
from ..tasks import Answer
from .page import render
from .view import Explained, ExplainedSample, Figure, View

KIND = "saccade explanation"


class Explanation(Explained):
    """An explanation; the attributes are those of `Explained`."""

    def __repr__(self) -> str:
        names = ", ".join(sample.name for sample in self.samples[:3])
        more = f" and {len(self.samples) - 3} more" if len(self.samples) > 3 else ""
        return f"<Explanation of {self.model}: {names}{more}>"

    def _repr_html_(self) -> str:
        """Return the notebook representation: the page."""
        return show_page(render(self))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write page, PNG images and numbers, all or nothing; return the page's path.

        Args:
            folder: folder to write to; it must not exist, unless it is an explanation and `overwrite` is set.
            overwrite: replace an earlier explanation.
        """
        folder = FOLDER.require(folder, overwrite=overwrite)
        with whole_folder(folder) as draft:
            files = _write_images(self, draft)
            numbers = json.dumps(_numbers(self, files), indent=1, allow_nan=False)
            (draft / "numbers.json").write_text(numbers, encoding="utf-8")
            (draft / "index.html").write_text(render(self), encoding="utf-8")
        return folder / "index.html"


def _write_images(explanation: Explained, folder: Path) -> dict[tuple[int, str], str]:
    files = {}
    for place, sample in enumerate(explanation.samples):
        inside = folder / f"image-{place + 1}"
        inside.mkdir()
        if sample.pixels is not None:
            Image.fromarray(sample.pixels).save(inside / "image.png")
        for figure in (figure for view in sample.views for figure in view.figures):
            if figure.pixels is None:
                continue
            path = inside / f"{_safe(figure.key)}.png"
            Image.fromarray(figure.pixels).save(path)
            files[place, figure.key] = str(path.relative_to(folder))
    return files


def _safe(key: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in key)


def _numbers(explanation: Explained, files: dict[tuple[int, str], str]) -> dict[str, Any]:
    def figure(place: int, one: Figure) -> dict[str, Any]:
        record = {"file": files.get((place, one.key)), "caption": one.caption, "layer": one.layer, "depth": one.depth}
        return {**{key: value for key, value in record.items() if value is not None}, "numbers": one.numbers}

    def view(place: int, one: View) -> dict[str, Any]:
        if one.absent is not None:
            return {"absent": one.absent}
        return {"numbers": one.numbers, "figures": {fig.key: figure(place, fig) for fig in one.figures}}

    def records_of(sample: ExplainedSample) -> dict[str, Answer | None]:
        return {"said": sample.said, "against_said": sample.other_said}

    samples = [
        {
            "name": sample.name,
            "answer": [{"class": name, **sample.measured(share)} for name, share in sample.answer],
            "against": [{"class": name, **sample.measured(share)} for name, share in sample.other],
            **{key: answer.record for key, answer in records_of(sample).items() if answer is not None},
            "views": {one.key: view(place, one) for one in sample.views},
        }
        for place, sample in enumerate(explanation.samples)
    ]
    about = {"kind": KIND, "model": explanation.model, "against": explanation.against}
    return {**about, "notes": list(explanation.notes), "samples": samples}


FOLDER = OwnFolder("explanation", lambda folder: read_record(folder / "numbers.json").get("kind") == KIND)
