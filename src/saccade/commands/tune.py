"""`saccade tune`."""

from argparse import ArgumentParser

from rich.console import Console
from rich.markup import escape

from ..importing import quick_imports
from . import Args


def flags(parser: ArgumentParser) -> None:
    """Find rate, weight decay and strength of augmentation for a model on your data, in a given time."""
    parser.add_argument("data", nargs="?", help="as for train; nothing: a set inside")
    parser.add_argument("--model", help="a model's name, ours or timm's")
    parser.add_argument("--budget", default="10m", help="time for all of it, such as 90s, 10m or 1h30m")
    parser.add_argument("--task", help="as for train; by the data's layout if not given")
    parser.add_argument("--plugin", action="append", help="as for train; repeatable")
    parser.add_argument("--recipe", help="to begin from, by name or file; its `grid` says what is tried, if it has one")
    parser.add_argument("--epochs", type=int, help="of the run that settings are sought for")
    parser.add_argument("--batch-size", type=int, help="samples a step")
    parser.add_argument("--lr", type=float, help="then the rate is not sought")
    parser.add_argument("--img-size", type=int, help="side of the images; by the images if not given")
    parser.add_argument("--out", help="the search's folder; one under runs/ named by what is asked")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; a GPU if there is one")
    parser.add_argument("--workers", type=int, help="processes that read files")
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="any other setting, kept as given; repeatable"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace another search in --out")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def run(args: Args) -> int:
    """Search, and write a recipe and a page."""
    with quick_imports():
        from ..config import parse_settings
        from ..training.loop import Interrupted
        from ..tuning.tune import tune as run_search

    plugins = [part for text in args.plugin or [] for part in text.split("+")]
    given = args.given_to(run_search, plugins=plugins, settings=parse_settings(args["set"] or []), since=args.since)
    try:
        run_search(args.data, **given)
    except Interrupted as stop:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"stopped by {stop}; the same command resumes {escape(str(stop.run))}", highlight=False)
        return 128 + stop.number
    return 0
