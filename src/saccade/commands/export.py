"""`saccade export`."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import JSON, TARGET, Args

if TYPE_CHECKING:
    from ..deployment.judge import ExportedFile
    from ..tasks import MetricSpec

WRITES = (
    r"export(/((export|tokenizer)\.json|model[\w.]*\.(onnx|pt2)|\.[^/]+\.part|\.part\.[^/]+))?"  # in a run's folder
)


def flags(parser: ArgumentParser) -> None:
    """Export a model to ONNX or torch.export, verified against the original on real images."""
    parser.add_argument("target", metavar="RUN", help=TARGET)
    parser.add_argument(
        "--format", action="append", help="onnx or pt2 (a torch.export package); repeatable (default: onnx)"
    )
    parser.add_argument("--half", action="store_true", help="also write a float16 model (ONNX only)")
    parser.add_argument("--int8", action="store_true", help="also write a model with 8-bit weights (ONNX only)")
    parser.add_argument("--out", metavar="DIR", help="output directory (default: `export` in the run directory)")
    parser.add_argument("--data", help="dataset to verify on, as for train (default: the run's validation split)")
    parser.add_argument("--val", help="validation images of --data, if it has no validation split")
    parser.add_argument("--limit", type=int, default=500, metavar="N", help="number of samples to verify on")
    parser.add_argument("--json", action="store_true", help=JSON)


def run(args: Args) -> None:
    """Export and print the files and their measurements."""
    from ..deployment.export import export as run_export

    console = Console(stderr=True)
    with console.status("exporting") as status:
        done = run_export(
            args.target,
            **args.given_to(run_export, formats=args.format or ["onnx"]),
            progress=lambda text: status.update(escape(text)),
        )
    if args.json:
        print(json.dumps(done.to_dict(), indent=2))
        return
    out = Console(highlight=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = 1000  # lines are not truncated in files and pipes
    known = "" if done.score is None else f": {done.metric.words} {done.metric.show(done.score)} in PyTorch"
    out.print(f"{done.bundle.name}, verified on {done.samples} {done.origin}{known}", markup=False)
    out.print(as_table(done.files, done.metric))
    for note in done.notes:
        out.print(note, markup=False)
    out.print(f"written: {done.folder}", markup=False)


def as_table(files: "Sequence[ExportedFile]", metric: "MetricSpec") -> Table:
    """Return a table of measurements for 80 columns."""
    table = Table(box=None, pad_edge=False)
    table.add_column("file", no_wrap=True)
    for column in ("MiB", "max diff", "same", metric.name, "lost", "95%", "ms", "eager"):
        table.add_column(column, justify="right", no_wrap=True)
    for file in files:
        table.add_row(
            file.path.name,
            f"{file.mib:.1f}",
            f"{file.parity.difference:.1e}",
            f"{file.parity.same:.0%}",
            *_scored(file, metric),
            f"{1e3 * file.seconds:.1f}",
            f"{1e3 * file.eager_seconds:.1f}",
        )
    return table


def _scored(file: "ExportedFile", metric: "MetricSpec") -> tuple[str, str, str]:
    """Format a file's score, and its loss with interval."""
    if file.score is None or file.loss is None:
        return "-" if file.score is None else _shown(file.score, metric), "-", "-"
    value, low, high = file.loss.value, file.loss.low, file.loss.high
    if metric.share:
        detail = "-" if low is None or high is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
        return _shown(file.score, metric), f"{value:+.2%}", detail
    detail = "-" if low is None or high is None else f"{_short(low)} to {_short(high)}"
    return _shown(file.score, metric), _short(value), detail


def _shown(score: float, metric: "MetricSpec") -> str:
    return f"{score:.1%}" if metric.share else f"{score:.3g}"


def _short(value: float) -> str:
    """Format a small number in six characters."""
    return f"{value:.2g}" if abs(value) >= 0.01 or not value else f"{value:.0e}"
