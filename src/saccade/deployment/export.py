"""Export a trained model, verified against the original."""

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..building.loading import UNFINISHED, find_target, open_model
from ..building.pretrained import PREFIX
from ..data.spec import InputSpec
from ..support.files import write_text
from ..tasks.opening import find_task
from .bundle import Bundle, ExportError, require_onnxruntime
from .graph import WithPreprocessing, WithTokens, halved, trace, wrap, write_onnx, write_program
from .judge import Exported, ExportedFile, Judge
from .predictor import plugin_names
from .quantizing import note_small_saving, write_int8
from .verify import CALIBRATION, TOLERANCE, calibration_images, gather

FORMATS = ("onnx", "pt2")
CARD = "export.json"
TOKENIZER = "tokenizer.json"  # written with text models, for other programs


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
    """Export a model to ONNX or torch.export, verified against the original on real images.

    Args:
        target: run folder, weights, name of a timm model with pretrained weights, or NAME@FILE, such as a published
            checkpoint.
        formats: "onnx", "pt2" (a torch.export package) or both.
        out: output folder; default: `export` in the run's.
        half: also write a float16 version; ONNX only, since PyTorch is slow at float16 on a CPU.
        int8: also write a version with 8-bit weights; ONNX only.
        data: dataset whose validation images are used for verification; default: the run's own.
        val: validation images of that dataset, if it has none of its own.
        limit: number of images for measuring the loss in accuracy.
        tolerance: largest allowed difference of an output, relative to the largest output if that exceeds one.
        progress: prints progress.

    Returns:
        The files and measurements, which are also in the folder's `export.json`.
    """
    _check(formats, half=half, int8=int8, limit=limit)
    target = find_target(target)
    loaded = open_model(target)
    model, spec = loaded.model, loaded.spec.in_square()
    if (problem := getattr(model, "no_graph", None)) is not None:
        raise ExportError(f"{_name(target)} cannot be exported: {problem}")
    folder = _folder(target, out)
    progress("gathering images")
    evidence = gather(target, spec, data=data, val=val, limit=limit)
    wrapped = wrap(model, spec)
    if (half or int8) and isinstance(wrapped, WithTokens):
        raise ExportError(
            "half and int8 are not available for a model that reads texts, which is written in float32; remove them"
        )
    judge = Judge(wrapped.outputs, evidence, spec, tolerance=tolerance)
    with _drafts(folder) as drafts:
        bundle = _describe(model, spec, _name(target) + UNFINISHED * loaded.unfinished)
        work = _Export(wrapped, spec, bundle, (folder, drafts), judge, progress)
        for form in dict.fromkeys(formats):
            work.write(form, f"model.{form}", bundle)
        if asked := spec.extra.get("asked"):
            ways = ", ".join(f"{name}={value}" for name, value in asked.items())
            work.notes.append(
                f"the graph processes whole images in one pass; the run was validated, and predicts, with {ways}"
            )
        if longest := loaded.spec.extra.get("longest"):
            work.notes.append(
                f"the graph fits images into a square of {spec.img_size} pixels; the run was validated, and predicts, "
                f"with a shorter side of {spec.img_size} and a longer one of at most {longest}"
            )
        if half:
            work.write("onnx", "model.half.onnx", replace(bundle, precision="float16"))
        if int8:
            work.int8(calibration_images(target, spec, data=data, val=val))
    done = Exported(
        folder=folder,
        bundle=bundle,
        files=tuple(work.files),
        samples=len(evidence.samples),
        origin=evidence.origin,
        metric=judge.metric,
        score=judge.score,
        notes=(*loaded.notes, *work.notes),
    )
    if isinstance(wrapped, WithTokens):
        write_text(folder / TOKENIZER, spec.extra["tokens"]["tokenizer"])
    write_text(folder / CARD, json.dumps(done.to_dict(), indent=2, allow_nan=False) + "\n")
    return done


class _Export:
    """Writes the files of one export; traced graphs are shared between formats."""

    def __init__(
        self,
        wrapped: WithPreprocessing,
        spec: InputSpec,
        bundle: Bundle,
        places: tuple[Path, Path],
        judge: Judge,
        progress: Callable[[str], None],
    ) -> None:
        self.wrapped, self.spec, self.bundle = wrapped, spec, bundle
        (self.folder, self.drafts), self.judge, self.progress = places, judge, progress
        self.traced: dict[str, ExportedProgram] = {}  # by precision
        self.files: list[ExportedFile] = []
        self.notes: list[str] = []

    def int8(self, training: Tensor | None) -> None:
        """Write the version with 8-bit weights; framed training images, if any, calibrate activation ranges."""
        bundle = replace(self.bundle, precision="int8")
        if training is None:
            training = self.judge.evidence.samples[:CALIBRATION]
            self.notes.append(
                "int8: activation ranges were calibrated on the verification images, since the training images are "
                "not available"
            )
        source = self.folder / "model.onnx"
        self._publish("onnx", "model.int8.onnx", bundle, lambda draft: write_int8(source, draft, bundle, training))
        if message := note_small_saving(self.files[-1].mib, source.stat().st_size / 2**20):
            self.notes.append(message)

    def write(self, form: str, name: str, bundle: Bundle) -> None:
        """Write a version in the precision of its bundle."""
        if bundle.precision not in self.traced:
            self.progress(f"tracing {bundle.name} in {bundle.precision}")
            wrapped = halved(self.wrapped.model, self.spec) if bundle.precision == "float16" else self.wrapped
            self.traced[bundle.precision] = trace(wrapped)
        program, write = self.traced[bundle.precision], write_onnx if form == "onnx" else write_program
        self._publish(form, name, bundle, lambda draft: write(program, draft, bundle))

    def _publish(self, form: str, name: str, bundle: Bundle, write: Callable[[Path], None]) -> None:
        """Write a draft, verify it, and move it to the folder if it passes."""
        draft = self.drafts / name
        self.progress(f"writing {name}")
        write(draft)
        self.progress(f"verifying {name}")
        measured = self.judge.measure(form, draft, bundle)
        self.folder.mkdir(parents=True, exist_ok=True)
        os.replace(draft, self.folder / name)
        self.files.append(replace(measured, path=self.folder / name))


@contextmanager
def _drafts(folder: Path) -> Iterator[Path]:
    """Temporary folder for drafts on the disk of the output folder."""
    near = folder.absolute()
    while not near.is_dir():
        near = near.parent
    drafts = Path(tempfile.mkdtemp(prefix=".export.", suffix=".part", dir=near))
    try:
        yield drafts
    finally:
        shutil.rmtree(drafts, ignore_errors=True)


def _describe(model: nn.Module, spec: InputSpec, name: str) -> Bundle:
    kind = find_task(spec.task)
    versions = {"saccade": version("saccade"), "torch": str(torch.__version__), "python": platform.python_version()}
    return Bundle.of(
        model,
        spec,
        name=name,
        plugins=plugin_names(model),
        versions=tuple(versions.items()),
        any_size=kind.reader.reads != "question",
        raw=kind.reader.reads == "image",
    )


def _check(formats: Sequence[str], *, half: bool, int8: bool, limit: int) -> None:
    wrong = [form for form in formats if form not in FORMATS] if not isinstance(formats, str) else [formats]
    if wrong or not formats:
        raise ExportError(f"formats={formats!r}: expected a list of one or more of {', '.join(FORMATS)}")
    if (half or int8) and "onnx" not in formats:
        raise ExportError("half and int8 need the format onnx, the only one that they are written in; add it")
    if limit < 1:
        raise ExportError(f"limit={limit}: an export is verified on at least one image")
    if "onnx" in formats:
        require_onnxruntime()


def _folder(target: str | Path, out: str | Path | None) -> Path:
    if out is not None:
        folder = Path(out).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ExportError(f"out={out} is a file; choose a directory for the exported files")
        return folder
    path = Path(target).expanduser()
    if path.is_file():
        path = path.parent
    return path / "export" if path.is_dir() else Path("exports") / _name(target)


def _name(target: str | Path) -> str:
    """Return a model's name: that of its run's folder, or its own with its file's name."""
    path = Path(target).expanduser()
    if path.is_file():
        path = path.parent
    if path.exists():
        return path.resolve().name
    name, at, file = str(target).removeprefix(PREFIX).partition("@")
    return re.sub(r"[^\w.-]", "_", f"{name}-{Path(file).stem}" if at else name)
