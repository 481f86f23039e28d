"""`saccade tune`."""

from argparse import ArgumentParser

from rich.console import Console
from rich.markup import escape

from ..support.importing import quick_imports
from . import AUTO_WORKERS, BEST_DEVICE, DATA, IMG_SIZE, MODEL, SET, SILENT, TASK, Args


def flags(parser: ArgumentParser) -> None:
    """Search for learning rate, weight decay and augmentation strength on your data, within a time budget."""
    parser.add_argument("data", metavar="DATA", nargs="?", help=DATA)
    parser.add_argument("--model", metavar="NAME", help=MODEL)
    parser.add_argument(
        "--budget", default="10m", metavar="TIME", help="time budget for the whole search, e.g. 90s, 10m or 1h30m"
    )
    parser.add_argument("--task", help=TASK)
    parser.add_argument("--plugin", action="append", help="plug-in to add to the recipe's, as for train; repeatable")
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE",
        help="recipe to start from (default: as for train); its `grid`, if any, is the search space",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="number of epochs of the run to tune for; trials are shorter (default: the recipe's)",
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="batch size (default: as for train)")
    parser.add_argument("--lr", type=float, help="peak learning rate; it is then kept and not searched")
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help=IMG_SIZE)
    parser.add_argument(
        "--out", metavar="DIR", help="output directory (default: one under runs/, named by the request)"
    )
    parser.add_argument("--device", help=BEST_DEVICE)
    parser.add_argument("--workers", type=int, metavar="N", help=AUTO_WORKERS)
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help=f"{SET}; it is kept and not searched")
    parser.add_argument("--overwrite", action="store_true", help="replace another search in --out")
    parser.add_argument("--quiet", action="store_true", help=SILENT)


def run(args: Args) -> int:
    """Search, and write a recipe and a page."""
    with quick_imports():
        from ..settings import parse_settings
        from ..training.loop import Interrupted
        from ..tuning.tune import tune as run_search

    plugins = [part for text in args.plugin or [] for part in text.split("+")]
    given = args.given_to(run_search, plugins=plugins, settings=parse_settings(args["set"] or []), since=args.since)
    try:
        run_search(args.data, **given)
    except Interrupted as stop:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"stopped by {stop}; resume {escape(str(stop.run))} with the same command", highlight=False)
        return 128 + stop.number
    return 0
