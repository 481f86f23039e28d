"""`saccade data`."""

import json
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from ..support.wording import count_of
from . import BATCH_SIZE, COLUMNS, COLUMNS_AS, DATA, DEVICE, TASK, THREADS, Args

if TYPE_CHECKING:
    from ..data.fix import Fixed

MAX_ROWS_SHOWN = 20  # most omitted images listed


def flags(parser: ArgumentParser) -> None:
    """Check a dataset for problems (`data check`), or write a teacher's token labels (`data labels`)."""
    parser.add_argument(
        "what",
        metavar="check|labels",
        choices=["check", "labels"],
        help="check: read every image once and report problems; labels: write a teacher's labels of every patch of the "
        "training images, for `train --plugin token_label:maps=OUT`",
    )
    parser.add_argument("data", metavar="DATA", nargs="?", default="", help=DATA)
    parser.add_argument("--task", help=f"check: {TASK}")
    parser.add_argument("--columns", metavar=COLUMNS_AS, help=f"check: {COLUMNS}")
    parser.add_argument("--val", help="validation images, if the dataset has no validation split")
    parser.add_argument(
        "--min-side", type=int, default=16, metavar="PIXELS", help="check: report images with a shorter side as tiny"
    )
    parser.add_argument(
        "--max-pixels", type=int, default=120_000_000, metavar="N", help="check: report images with more pixels as huge"
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help=f"check: {THREADS}")
    parser.add_argument("--json", action="store_true", help="check: print the full report as JSON")
    parser.add_argument(
        "--answers",
        metavar="RUN|COMPARISON",
        help="check: list labels that are probably wrong, by the predictions of models that were not trained on the "
        "image (a run, or the output of compare or evaluate with --folds)",
    )
    parser.add_argument("--arm", help="check --answers: arm of the comparison to use (default: the most accurate one)")
    parser.add_argument(
        "--fix",
        metavar="PATH",
        help="check: write a clean copy of the dataset to this directory; with --answers, write a list with the labels "
        "of suspects.csv in --out to this file; the dataset itself is not modified",
    )
    parser.add_argument("--teacher", metavar="RUN", help="labels: teacher, a run, timm:NAME or timm:NAME@FILE")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="labels: output directory; check --answers: likewise (default: `suspects` in RUN)",
    )
    parser.add_argument("--top", type=int, default=5, metavar="K", help="labels: number of classes to keep per patch")
    parser.add_argument(
        "--logits", action="store_true", help="labels: store logits, as published, instead of probabilities"
    )
    parser.add_argument(
        "--img-size", type=int, metavar="PIXELS", help="labels: input resolution in pixels (default: the teacher's)"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help=f"labels: {BATCH_SIZE}")
    parser.add_argument("--device", default="cpu", help=f"labels: {DEVICE}")


def run(args: Args) -> int:
    """Run the subcommand; the exit status is 1 if there are serious problems."""
    if args.what == "labels":
        return _labels(args)
    return _suspects(args) if args.answers is not None else _check(args)


def _suspects(args: Args) -> int:
    """List labels that are probably wrong, or write a list without them."""
    from ..evaluation.suspect_files import fix_labels, write_suspects
    from ..evaluation.suspects import find_suspects

    args.refuse_others("with --answers", find_suspects, "what", "answers", "fix", "out")
    found = find_suspects(args.answers, arm=args.arm, data=args.data)
    out = Path(args.out or Path(args.answers) / "suspects").expanduser()
    if args.fix is not None:
        changed = fix_labels(found, out / "suspects.csv", Path(args.fix).expanduser())
        print(
            f"{changed} labels corrected as in {out / 'suspects.csv'}: {args.fix}; the dataset itself is not modified"
        )
        return 0
    page, table = write_suspects(found, out)
    print(found.sentence)
    for one in found.suspects[:20]:
        print(f"  {one.name}: labelled {one.given}, probably {one.likely} ({one.wrong:.0%})")
    print(f"review them: {page}")
    print(f"correct the column `label` of {table}, then run: saccade data check --answers {args.answers} --fix FILE")
    return 0


def _labels(args: Args) -> int:
    from ..building.loading import open_device
    from ..settings import ConfigError
    from ..training.labelling import write_labels

    args.refuse_others("to data labels", write_labels, "what", "logits")
    if args.teacher is None or args.out is None:
        raise ConfigError("data labels needs a teacher and an output directory: give --teacher RUN --out DIR")
    open_device(args.device)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running the teacher", total=None)
        values = "logits" if args.logits else "probabilities"
        given = args.given_to(write_labels, values=values, progress=partial(_advance, bar, task))
        maps, bad = write_labels(args.data, **given)
    for image in bad:
        print(f"skipped: {image}")
    print(f"wrote {len(maps)} label maps ({maps.num_classes} classes) to {maps.path}")
    print(f"to train with them: saccade train {args.data} --recipe token_label --plugin token_label:maps={maps.path}")
    return 0


def _check(args: Args) -> int:
    """Print the report on a dataset; the exit status is 1 if there are serious problems."""
    from ..data.check import scan_dataset
    from ..data.fix import write_clean
    from ..data.table import parse_columns
    from ..settings import ConfigError
    from ..tasks.opening import choose_task, read_by_layout

    args.refuse_others("to data check", scan_dataset, "what", "data", "val", "fix", "json")
    read_targets, name = read_by_layout, None
    if args.task is not None:
        choice = choose_task(args.task)
        name = choice.kind.name
        read_targets = choice.reader.read_table
    columns = parse_columns(args.columns or {})
    if args.fix is not None and args.val is not None:
        raise ConfigError("--fix cannot be combined with --val; write clean copies of the two datasets separately")
    if args.fix is not None and Path(args.fix).exists():
        raise ConfigError(f"--fix {args.fix} already exists; choose a new directory")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading images", total=None)
        how = {"read_targets": read_targets, "columns": columns, "task": name}
        given = args.given_to(scan_dataset, **how, progress=partial(_advance, bar, task))
        found = scan_dataset(args.data, **given)
    report = found.report
    if args.fix is not None:
        _say_fixed(write_clean(found, args.data, Path(args.fix).expanduser(), columns), quiet=args.json)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2))
        return 0 if report.ok or args.fix is not None else 1
    console = Console(highlight=False, soft_wrap=True)
    total = " + ".join(f"{count} {split}" for split, count in report.images.items())
    console.print(f"{report.name}: {total} images, {len(report.classes)} {report.noun}", markup=False)
    if report.imbalance > 1:
        console.print(
            f"  imbalance: the largest class has {report.imbalance:.3g} times the {report.counted} of the smallest"
        )
    for line in (*report.notes, *(f"fewer than 10 {report.counted}: {name}" for name in report.small_classes[:10])):
        console.print(f"  {line}", markup=False)
    traits = ", ".join(f"{count} {name}" for name, count in report.traits.items() if count)
    console.print(f"  {traits or 'all images are 8-bit RGB'}")
    if report.findings:
        console.print(f"problems: {', '.join(f'{n} {kind}' for kind, n in report.counts().items())}")
        for finding in report.findings[:50]:
            kind = f"[red]{finding.kind}[/]" if finding.serious else finding.kind
            console.print(f"  {kind}: {escape(finding.name)}: {escape(finding.reason)}")
        if len(report.findings) > 50:
            console.print(f"and {len(report.findings) - 50} more (--json prints all)")
    console.print("no serious problems" if report.ok else "[red]serious problems found[/]")
    return 0 if report.ok or args.fix is not None else 1


def _advance(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def _say_fixed(fixed: "Fixed", *, quiet: bool) -> None:
    """Print the location of a clean copy, and what it omits."""
    console = Console(stderr=quiet, highlight=False, soft_wrap=True)
    for name, reason in fixed.left_out[:MAX_ROWS_SHOWN]:
        console.print(f"left out: {name}: {reason}", markup=False)
    if len(fixed.left_out) > MAX_ROWS_SHOWN:
        console.print(f"and {len(fixed.left_out) - MAX_ROWS_SHOWN} more (left_out.csv in the copy lists all)")
    lacks = f"{count_of(len(fixed.left_out), 'image')} left out"
    console.print(
        f"clean copy: {fixed.path}, {count_of(fixed.kept, 'image')}, {lacks}; the dataset itself is not modified",
        markup=False,
    )
