"""Finish a run: write its weights, scores, predictions, summary and report."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.image import count_bad
from ..data.spec import IMAGE
from ..report.page import show_facts
from ..runs.run import Run
from ..runs.scores import save_scores
from ..runs.weights import save_model, save_tensors
from ..support.files import write_text
from ..support.wording import count_of
from .loop import Loop
from .setup import TrainingParts


@dataclass(frozen=True)
class Trained:
    """Result of a training run.

    Attributes:
        path: the run's folder.
        score: validation score in the primary metric.
        metric: name of the primary metric.
        metrics: the last epoch's record.
        seconds: duration of training, validation and saving, including resumed parts.
    """

    path: Path
    score: float
    metric: str
    metrics: dict[str, Any]
    seconds: float

    def __repr__(self) -> str:
        epochs = count_of(self.metrics.get("epoch", 0), "epoch")
        return f"<Trained {self.path}: {self.metric} {self.score:.4g} after {epochs}>"

    def _repr_html_(self) -> str:
        """Return the notebook representation."""
        shown = {name: f"{value:.4g}" for name, value in self.metrics.items() if isinstance(value, int | float)}
        return show_facts(
            str(self.path), {self.metric: f"{self.score:.4g}", "report": str(self.path / "report.html"), **shown}
        )

    def __getattr__(self, name: str) -> float:
        """Return a validation metric by name, such as `loss`."""
        if f"val_{name}" in self.__dict__.get("metrics", {}):
            return float(self.metrics[f"val_{name}"])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def finish(loop: Loop, run: Run, parts: TrainingParts, record: dict[str, Any], *, seconds: float) -> Trained:
    """Write weights, scores, predictions and the summary of a finished run."""
    measured = loop.measured or loop.evaluate()
    metrics = {f"val_{name}": value for name, value in measured.compute().items()}
    measured.calibrate()
    weights, predictions = loop.weights(), loop.predictions(measured)
    primary = parts.primary
    trained = Trained(run.path, metrics[f"val_{primary.name}"], primary.name, record, seconds)
    if loop.world.is_main:
        model = loop.task.model
        names = [parts.data.val.name(int(place)) for place in measured.columns["place"]]
        save_scores(run.scores_file, measured.scores(), measured.columns["place"], names, parts.spec)
        save_tensors(run.predictions_file, {"place": measured.columns["place"], **predictions})
        save_model(run.weights, weights, loop.config.model, parts.spec)
        for left in (run.last_weights, *run.path.glob(".*.safetensors.part")):  # drafts of processes that died
            left.unlink(missing_ok=True)
        summary = {
            **metrics,
            "task": parts.spec.task,
            "primary": primary.name,
            **loop.trained(),
            "seconds": sum(r["seconds"] for r in run.metrics()),
            "parameters": sum(p.numel() for p in model.parameters()),
            **loop.kernels(),
            "validation": {
                "samples": len(measured),
                "fingerprint": parts.identity["validation"][1],
                **({"frame": IMAGE} if parts.spec.own_frame else {}),
            },
            "data": parts.data.name,
            "classes": list(parts.spec.outputs),
            "bad_samples": loop.unreadable(),
        }
        write_text(run.path / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False))
        report = _report(run, parts)
        epochs, bad = count_of(loop.epoch, "epoch"), count_bad(loop.feed.bad | parts.validation.bad)
        loop.console.close(
            f"{loop.config.model.name} on {parts.data.name}",
            {
                primary.words: f"{primary.show(trained.score)} on {len(measured)} validation samples",
                "trained": f"{epochs}{loop.length.remark}, {count_of(loop.step, 'step')}, {summary['seconds']:.0f} s",
                "parameters": f"{summary['parameters']:,}",
                **({"unreadable samples": f"{bad}, skipped"} if bad else {}),
                "run": str(run.path),
                **({"report": str(report)} if report else {}),
            },
        )
    loop.world.wait()
    return trained


def _report(run: Run, parts: TrainingParts) -> Path | None:
    """Write the report; errors do not fail a finished run."""
    from .report import write_report

    try:
        return write_report(run, parts.data)
    except Exception as error:
        warnings.warn(f"{run.path} is finished, but its report was not written: {error!r}", stacklevel=2)
        return None
