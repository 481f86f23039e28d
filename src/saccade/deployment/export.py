"""Write a trained model for other programs, and declare it good only after it answered as the original does."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..building import Shape, open_model
from ..runs import write_text
from .bundle import Bundle, ExportError, require_onnxruntime
from .graph import Asked, trace, write_onnx, write_program
from .predictor import OnnxPredictor, ProgramPredictor, plugin_names
from .quantize import halved, write_int8
from .verify import TOLERANCE, Answer, Evidence, Loss, Parity, compare, correct, gather, paired_loss, race, sizes_to_try

FORMATS = ("onnx", "pt2")
CARD = "export.json"


@dataclass(frozen=True)
class ExportedFile:
    """One file that was written and what was measured of it.

    Args:
        path: where it lies.
        format: onnx or pt2.
        precision: float32, float16 or int8.
        mib: its size.
        sha256: of its bytes.
        parity: to the eager model; judged for float32 only.
        accuracy: on the pictures, where they have labels.
        loss: of accuracy, against the eager model on the same pictures.
        seconds: a picture, five asked at once.
        eager_seconds: the same for the eager model, in turn with it.
    """

    path: Path
    format: str
    precision: str
    mib: float
    sha256: str
    parity: Parity
    accuracy: float | None
    loss: Loss | None
    seconds: float
    eager_seconds: float


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Args:
        folder: where it lies.
        bundle: what the files say of themselves.
        files: in the order they were written.
        pictures: how many they were judged by.
        origin: where the pictures come from.
        accuracy: of the eager model on them, where they have labels.
        notes: remarks.
    """

    folder: Path
    bundle: Bundle
    files: tuple[ExportedFile, ...]
    pictures: int
    origin: str
    accuracy: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON, files by their names."""
        told = asdict(self)
        del told["folder"]
        told["bundle"]["versions"] = dict(self.bundle.versions)
        told["files"] = [asdict(file) | {"path": file.path.name} for file in self.files]
        return told


def export(
    target: str | Path,
    *,
    formats: Sequence[str] = ("onnx",),
    out: str | Path | None = None,
    half: bool = False,
    int8: bool = False,
    data: str | None = None,
    val: str | None = None,
    limit: int = 500,
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write a model as ONNX or as a torch.export package, verified against the original on real pictures.

    Args:
        target: a run's folder, its weights, or the name of a timm model with pretrained weights.
        formats: "onnx", "pt2" (a torch.export package) or both.
        out: the folder to write to; `export` in the run's if not given.
        half: a float16 version as well; ONNX only, since PyTorch is slow at it on a CPU.
        int8: a version with 8-bit weights as well; ONNX only.
        data: the set whose validation pictures are the judges; the run's own if not given.
        val: that set's validation pictures, if it has none of its own.
        limit: how many pictures to judge the accuracy by.
        tolerance: the largest difference of a logit that is allowed, times the largest logit if that is over one.
        progress: is told what is being done.

    Returns:
        What was written and measured; `export.json` in the folder holds the same.
    """
    _check(formats, half=half, int8=int8, limit=limit)
    model, shape = open_model(target)
    folder = _folder(target, out)
    progress("gathering pictures")
    evidence = gather(target, shape, data=data, val=val, limit=limit)
    work = _Export(model, shape, _name(target), folder, evidence, tolerance, progress)
    for form in dict.fromkeys(formats):
        work.plain(form)
    if half:
        work.half()
    if int8:
        work.int8()
    done = work.done()
    write_text(folder / CARD, json.dumps(done.to_dict(), indent=2, allow_nan=False) + "\n")
    return done


class _Export:
    """The steps of one export; traced graphs are shared between formats."""

    def __init__(
        self,
        model: nn.Module,
        shape: Shape,
        name: str,
        folder: Path,
        evidence: Evidence,
        tolerance: float,
        progress: Callable[[str], None],
    ) -> None:
        self.model, self.shape, self.folder, self.evidence = model, shape, folder, evidence
        self.tolerance, self.progress = tolerance, progress
        self.asked = Asked(model, shape.mean, shape.std).eval()
        self.eager = _asking(self.asked)
        self.eager_correct = correct(self.eager, evidence)
        versions = {"saccade": version("saccade"), "torch": str(torch.__version__), "python": platform.python_version()}
        self.bundle = Bundle.of(
            model, shape, name=name, plugins=plugin_names(model), any_size=True, versions=tuple(versions.items())
        )
        self.traced: dict[bool, ExportedProgram] = {}  # by whether in half precision
        self.files: list[ExportedFile] = []
        self.notes: list[str] = []

    def plain(self, form: str) -> None:
        """Write the float32 version, for any size if the model takes any."""
        if self.bundle.any_size:
            try:
                self._write(form, f"model.{form}", self.bundle)
                return
            except ExportError as error:
                if self.files:  # another format was written for any size: this is another matter
                    raise
                self.traced.clear()
                self.bundle = replace(self.bundle, any_size=False)
                self.notes.append(f"pictures of {self.shape.img_size} x {self.shape.img_size} only: {error}")
        self._write(form, f"model.{form}", self.bundle)

    def half(self) -> None:
        """Write the float16 version."""
        self._write("onnx", "model.half.onnx", replace(self.bundle, precision="float16"))

    def int8(self) -> None:
        """Write the version with 8-bit weights, made of the float32 file."""
        bundle = replace(self.bundle, precision="int8")
        self._publish("onnx", "model.int8.onnx", bundle, lambda d: write_int8(self.folder / "model.onnx", d, bundle))

    def done(self) -> Exported:
        """Return all that was written."""
        return Exported(
            folder=self.folder,
            bundle=self.bundle,
            files=tuple(self.files),
            pictures=len(self.evidence.pictures),
            origin=self.evidence.origin,
            accuracy=None if self.eager_correct is None else float(self.eager_correct.mean()),
            notes=tuple(self.notes),
        )

    def _write(self, form: str, name: str, bundle: Bundle) -> None:
        half = bundle.precision == "float16"
        if half not in self.traced:
            self.progress(f"tracing {bundle.name} in {bundle.precision}")
            asked = halved(self.model, self.shape) if half else self.asked
            self.traced[half] = trace(
                asked, channels=bundle.channels, img_size=bundle.img_size, any_size=bundle.any_size
            )
        write = write_onnx if form == "onnx" else write_program
        self._publish(form, name, bundle, lambda draft: write(self.traced[half], draft, bundle))

    def _publish(self, form: str, name: str, bundle: Bundle, write: Callable[[Path], None]) -> None:
        """Write a file under a draft name, judge it, and give it its name only if it is good."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f".part.{name}"
        try:
            self.progress(f"writing {name}")
            write(draft)
            self.progress(f"verifying {name}")
            measured = self._judge(form, draft, bundle)
            os.replace(draft, self.folder / name)
        finally:
            draft.unlink(missing_ok=True)
        self.files.append(replace(measured, path=self.folder / name))

    def _judge(self, form: str, draft: Path, bundle: Bundle) -> ExportedFile:
        opened = OnnxPredictor(draft) if form == "onnx" else ProgramPredictor(draft, trust=True)
        answer: Answer = opened.logits
        sizes = sizes_to_try(bundle.img_size, any_size=bundle.any_size)
        try:
            parity = compare(self.eager, answer, self.evidence.pictures, sizes)
        except ExportError:
            raise
        except Exception as error:  # of the runtime, at a size or number of pictures the graph was not made for
            raise ExportError(f"the exported {form} fails where the original answers: {str(error)[:300]}") from error
        if bundle.precision == "float32" and not parity.within(self.tolerance):
            raise ExportError(
                f"the exported {form} differs from the original by up to {parity.difference:.3g} in a logit, more than "
                f"{self.tolerance:g} (times the largest logit, {parity.scale:.3g}), at {_sizes(sizes)}; it was not kept"
            )
        if not np.isfinite(parity.difference):
            raise ExportError(f"the {bundle.precision} version gives numbers that are not finite; it was not kept")
        right = correct(answer, self.evidence)
        eager_seconds, seconds = race([self.eager, answer], self.evidence.pictures[:5])
        return ExportedFile(
            path=draft,
            format=form,
            precision=bundle.precision,
            mib=draft.stat().st_size / 2**20,
            sha256=hashlib.sha256(draft.read_bytes()).hexdigest(),
            parity=parity,
            accuracy=None if right is None else float(right.mean()),
            loss=None if right is None or self.eager_correct is None else paired_loss(self.eager_correct, right),
            seconds=seconds,
            eager_seconds=eager_seconds,
        )


def _asking(asked: Asked) -> Answer:
    def answer(pictures: Tensor) -> np.ndarray:
        with torch.inference_mode():
            return asked(pictures).numpy()

    return answer


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{height} x {width}" for height, width in sizes)


def _check(formats: Sequence[str], *, half: bool, int8: bool, limit: int) -> None:
    wrong = [form for form in formats if form not in FORMATS] if not isinstance(formats, str) else [formats]
    if wrong or not formats:
        raise ExportError(f"formats={formats!r} was given; give one or more of {', '.join(FORMATS)} as a list")
    if (half or int8) and "onnx" not in formats:
        raise ExportError("half or int8 was asked for without onnx; both are written as ONNX only: add that format")
    if limit < 1:
        raise ExportError(f"limit={limit} was given; an export is judged by one picture at least")
    if "onnx" in formats:
        require_onnxruntime()


def _folder(target: str | Path, out: str | Path | None) -> Path:
    if out is not None:
        folder = Path(out).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ExportError(f"out={out} is a file; name a folder for the exported files")
        return folder
    path = Path(target).expanduser()
    if path.is_file():
        path = path.parent
    return path / "export" if path.is_dir() else Path("exports") / str(target).replace("/", "_").replace(":", "_")


def _name(target: str | Path) -> str:
    path = Path(target).expanduser()
    if path.is_file():
        path = path.parent
    return path.resolve().name if path.exists() else str(target)
