"""The judge of an export: opens a written file as its users will, and measures it or refuses it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..data.spec import InputSpec
from .bundle import Bundle, ExportError
from .exported import ExportedFile
from .predictor import OnnxPredictor, ProgramPredictor
from .score import lost, measure, primary_metric
from .verify import Evidence, Parity, Raw, compare, race, sizes_to_try


class Judge:
    """Holds the original and the pictures that files are judged by.

    Args:
        eager: answers as the original does.
        evidence: real pictures.
        spec: of the original, whose task reads the answers.
        tolerance: the largest difference of an output that is allowed, times the largest output if that is over one.
    """

    def __init__(self, eager: Raw, evidence: Evidence, spec: InputSpec, *, tolerance: float) -> None:
        self.eager, self.evidence, self.spec, self.tolerance = eager, evidence, spec, tolerance
        self.metric = primary_metric(spec)
        self.measured = measure(eager, evidence, spec)

    @property
    def score(self) -> float | None:
        """Of the original, where the pictures' targets are known."""
        return None if self.measured is None else self.measured.value

    def measure(self, form: str, path: Path, bundle: Bundle) -> ExportedFile:
        """Return what was measured of a file, or raise if it must not be kept.

        Args:
            form: onnx or pt2.
            path: of the file.
            bundle: what it says of itself.
        """
        opened = OnnxPredictor(path) if form == "onnx" else ProgramPredictor(path, trust=True)
        parity = self._parity(form, opened.outputs, bundle)
        measured = measure(opened.outputs, self.evidence, self.spec)
        eager_seconds, seconds = race([self.eager, opened.outputs], self.evidence.pictures[:5])
        return ExportedFile(
            path=path,
            format=form,
            precision=bundle.precision,
            mib=path.stat().st_size / 2**20,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            parity=parity,
            score=None if measured is None else measured.value,
            loss=None if measured is None or self.measured is None else lost(self.measured, measured),
            seconds=seconds,
            eager_seconds=eager_seconds,
        )

    def _parity(self, form: str, answer: Raw, bundle: Bundle) -> Parity:
        sizes = sizes_to_try(bundle.img_size, any_size=bundle.any_size)
        try:
            parity = compare(self.eager, answer, self.evidence.pictures, sizes, self.spec)
        except ExportError:
            raise
        except Exception as error:  # of the runtime, at a size or number of pictures the graph was not made for
            raise ExportError(f"the exported {form} fails where the original answers: {str(error)[:300]}") from error
        if bundle.precision == "float32" and not parity.within(self.tolerance):
            raise ExportError(
                f"the exported {form} differs from the original by up to {parity.difference:.3g} in an output, more "
                f"than {self.tolerance:g} (times the largest output, {parity.scale:.3g}), at "
                f"{_sizes(sizes)}; it was not kept"
            )
        if not np.isfinite(parity.difference):
            raise ExportError(f"the {bundle.precision} version gives numbers that are not finite; it was not kept")
        return parity


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{height} x {width}" for height, width in sizes)
