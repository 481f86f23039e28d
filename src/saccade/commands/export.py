"""`saccade export`."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import Args

if TYPE_CHECKING:
    from ..deployment.judge import ExportedFile
    from ..tasks import MetricSpec

WRITES = (
    r"export(/((export|tokenizer)\.json|model[\w.]*\.(onnx|pt2)|\.[^/]+\.part|\.part\.[^/]+))?"  # in a run's folder
)


def flags(parser: ArgumentParser) -> None:
    """Write a run for other programs: ONNX or a torch.export package, verified on real images before it is kept."""
    parser.add_argument("target", help="a run's folder, its weights, a timm model's name or NAME@FILE")
    parser.add_argument("--format", action="append", help="onnx (if not given) or pt2; repeatable")
    parser.add_argument("--half", action="store_true", help="a float16 version as well (ONNX)")
    parser.add_argument("--int8", action="store_true", help="a version with 8-bit weights as well (ONNX)")
    parser.add_argument("--out", help="the folder to write to; `export` in the run's if not given")
    parser.add_argument("--data", help="images to judge by, as for train; the run's own if not given")
    parser.add_argument("--val", help="the validation images of --data, if it has none of its own")
    parser.add_argument("--limit", type=int, default=500, help="how many images to judge by")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")


def run(args: Args) -> None:
    """Export and print what was written and measured."""
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
        out.width = 1000  # in a file or a pipe nothing is cut
    known = "" if done.score is None else f": eager {done.metric.words} {done.metric.show(done.score)}"
    out.print(f"{done.bundle.name}, judged by {done.samples} {done.origin}{known}", markup=False)
    out.print(as_table(done.files, done.metric))
    for note in done.notes:
        out.print(note, markup=False)
    out.print(f"written to {done.folder}", markup=False)


def as_table(files: "Sequence[ExportedFile]", metric: "MetricSpec") -> Table:
    """Return what was measured, narrow enough for 80 columns."""
    table = Table(box=None, pad_edge=False)
    table.add_column("file", no_wrap=True)
    for column in ("MiB", "off by", "same", metric.name, "lost", "95%", "ms", "eager"):
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
    """Return what a file reached in a metric, what it lost, and the interval of that."""
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
    """Return a small number in six letters."""
    return f"{value:.2g}" if abs(value) >= 0.01 or not value else f"{value:.0e}"
