"""`saccade predict`."""

from argparse import ArgumentParser

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..support.importing import quick_imports
from ..support.wording import count_of
from . import BATCH_SIZE, DEVICE, THREADS, TRUST, Args, add_kernels


def flags(parser: ArgumentParser) -> None:
    """Predict for images or texts, and write CSV, JSON lines or annotated images."""
    parser.add_argument(
        "target", metavar="MODEL", help="run directory, file of `saccade export`, timm model name or NAME@FILE"
    )
    parser.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="image files, directories, or - to read file names from standard input; for a model that reads texts: "
        "texts, text files (one per line), tables, or - to read lines",
    )
    parser.add_argument("--out", metavar="FILE", help="output file, .csv, .jsonl or .json (default: standard output)")
    parser.add_argument(
        "--form",
        choices=["csv", "jsonl", "coco", "vqa"],
        help="output format; coco is one JSON document of detections, vqa VQAv2's list of results "
        "(default: by the suffix of --out, else csv)",
    )
    parser.add_argument("--draw", metavar="DIR", help="write images with the predictions drawn on them to DIR")
    parser.add_argument("--masks", metavar="DIR", help="segmentation: write predicted masks to DIR")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="number of classes to report per image")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help=BATCH_SIZE)
    parser.add_argument("--workers", type=int, default=4, metavar="N", help=THREADS)
    parser.add_argument("--device", default="cpu", help=DEVICE)
    add_kernels(parser)
    parser.add_argument("--null", action="store_true", help="file names on standard input are separated by null bytes")
    parser.add_argument(
        "--max-pixels", type=int, default=120_000_000, metavar="N", help="skip images with more pixels than this"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--quiet", action="store_true", help="print neither progress nor the names of unreadable files")


def run(args: Args) -> int:
    """Write predictions; the exit status is 1 if no file could be read."""
    with quick_imports():
        from ..deployment.paths import count_paths
        from ..deployment.predict import Prediction
        from ..deployment.predict import predict as run_predict
        from ..deployment.writers import Tally, check_output, printable, write_predictions

    check_output(args.out, form=args.form)  # check before opening the model
    predictions = run_predict(args.target, args.images, **args.given_to(run_predict, keep=args.draw is not None))
    console = Console(stderr=True, soft_wrap=True, highlight=False, quiet=args.quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    last, noun = Tally(), {"image": "file"}.get(predictions.task.reader.reads, predictions.task.reader.reads)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(
            "predicting",
            total=None if args.quiet or predictions.task.reader.reads != "image" else count_paths(args.images),
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
            left = f"; partial output: {last.path}.part" if last.path is not None else ""
            console.print(f"stopped after {count_of(last.asked, noun)}{left}", markup=False)
            return 130
    where = "" if tally.path is None else f"; written: {tally.path}"
    console.print(f"{count_of(tally.asked, noun)}, {tally.bad} unreadable{where}", markup=False)
    return 0 if tally.ok else 1
