"""`saccade predict`."""

from argparse import ArgumentParser

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..importing import quick_imports
from ..wording import count_of
from . import Args, add_kernels


def flags(parser: ArgumentParser) -> None:
    """Ask a model what is in images: a table, lines of JSON, or images with the answer drawn on them."""
    parser.add_argument("target", help="a run, a file of `saccade export`, a timm model's name or NAME@FILE")
    parser.add_argument(
        "images",
        nargs="+",
        help="files, folders, or - for a list of names on standard input; of a model of texts: texts, files of lines, "
        "tables, or - for lines",
    )
    parser.add_argument("--out", help="a .csv, .jsonl or .json file; standard output if not given")
    parser.add_argument(
        "--form",
        choices=["csv", "jsonl", "coco"],
        help="by the ending of --out if not given; coco is one JSON document of a detector's objects",
    )
    parser.add_argument("--draw", metavar="DIR", help="a folder for images with the answers drawn")
    parser.add_argument("--masks", metavar="DIR", help="a folder for masks, of a segmenter")
    parser.add_argument("--top", type=int, default=5, help="how many classes, or other parts of an answer, to name")
    parser.add_argument("--batch-size", type=int, default=32, help="images asked together")
    parser.add_argument("--workers", type=int, default=4, help="threads that read")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    add_kernels(parser)
    parser.add_argument("--null", action="store_true", help="names on standard input end with a zero byte")
    parser.add_argument("--max-pixels", type=int, default=120_000_000, help="a larger image is refused")
    parser.add_argument("--trust", action="store_true", help="open a .pt2 file, which can run anything")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no names of bad files")


def run(args: Args) -> int:
    """Write predictions; the exit status is 1 if no file could be read."""
    with quick_imports():
        from ..deployment.paths import count_paths
        from ..deployment.predict import Prediction
        from ..deployment.predict import predict as run_predict
        from ..deployment.writers import Tally, check_output, printable, write_predictions

    check_output(args.out, form=args.form)  # before the model is opened
    predictions = run_predict(args.target, args.images, **args.given_to(run_predict, keep=args.draw is not None))
    console = Console(stderr=True, soft_wrap=True, highlight=False, quiet=args.quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    last = Tally()
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(
            "asking", total=None if args.quiet or predictions.task.reads != "image" else count_paths(args.images)
        )

        def each(prediction: Prediction, tally: Tally) -> None:
            nonlocal last
            last = tally
            bar.update(task, completed=tally.asked)
            if prediction.problem is not None and tally.bad <= 20:
                bar.console.print(f"{printable(prediction.name)}: {printable(prediction.problem)}", markup=False)

        try:
            tally = write_predictions(predictions, **args.given_to(write_predictions, each=each))
        except KeyboardInterrupt:
            left = f"; what was written is in {last.path}.part" if last.path is not None else ""
            console.print(f"stopped after {count_of(last.asked, 'file')}{left}", markup=False)
            return 130
    where = "" if tally.path is None else f"; written: {tally.path}"
    console.print(f"{count_of(tally.asked, 'file')}, {tally.bad} of them bad{where}", markup=False)
    return 0 if tally.ok else 1
