"""`saccade compare`."""

from argparse import ArgumentParser
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..importing import quick_imports
from . import Args, add_kernels, add_weights

WRITES = r"cost\.json"  # in a run's folder


def flags(parser: ArgumentParser) -> None:
    """Train several arms with several seeds, all else held equal, and say which one helps on your images."""
    parser.add_argument("data", nargs="?", help="as for train; nothing: a set inside")
    parser.add_argument(
        "--arm",
        action="append",
        help="base, broadcast, drloc:weight=0.3+lr=0.003, NAME:=model=glnet_stl, ...; repeatable",
    )
    parser.add_argument("--folds", type=int, help="validate on each of so many parts in turn, such as 5")
    parser.add_argument("--repeats", type=int, default=1, help="ways to cut the folds")
    parser.add_argument("--seeds", default="5", help="how many, or which: 3 or 0,1,7")
    parser.add_argument("--columns", help="of a list, which are what: image=name,label=breed")
    parser.add_argument("--task", help="as for train; by the data's layout if not given")
    parser.add_argument("--model", help="of all arms that do not name another")
    add_weights(parser)
    parser.add_argument("--recipe", help="as for train")
    parser.add_argument("--epochs", type=int, help="passes over the images")
    parser.add_argument("--batch-size", type=int, help="images a step")
    parser.add_argument("--lr", type=float, help="the highest learning rate")
    parser.add_argument("--img-size", type=int, help="side of the images")
    parser.add_argument(
        "--time", "--budget", dest="budget", help="for all of it, such as 30m: seeds and epochs are fitted"
    )
    parser.add_argument(
        "--tune",
        nargs="?",
        const="10m",
        metavar="TIME",
        help="seek settings for each arm first, so long each (10m if not said), on a part of the training images",
    )
    parser.add_argument("--out", help="the comparison's folder; one under runs/ named by what is asked")
    parser.add_argument("--metric", help="one that the task measures; the one that runs are judged by if not given")
    parser.add_argument("--margin", type=float, help="a difference too small to matter, such as 0.005")
    parser.add_argument("--parallel", type=int, help="runs side by side; one a GPU if not given")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; all GPUs if there are any")
    add_kernels(parser, default=None)
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="any other setting of all arms; repeatable"
    )
    parser.add_argument("--seeds-fixed", action="store_true", help="speak about these very trainings only")
    parser.add_argument("--plan", action="store_true", help="print the plan and stop")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of tables")
    parser.add_argument("--overwrite", action="store_true", help="take the place of another comparison in --out")
    parser.add_argument("--quiet", action="store_true", help="print the result alone")


def run(args: Args) -> int:
    """Run a comparison and print what it found; the exit status is 1 if an arm failed."""
    from ..spawning import start_early

    start_early(args.device)  # it imports while this process does
    with quick_imports():
        from ..comparison.compare import compare as run_comparison
        from ..comparison.compare import plan_comparison
        from ..comparison.request import Request
        from ..config import ConfigError, parse_settings
        from ..ranges import require_number
        from ..report.document import to_terminal
        from ..training.loop import Interrupted

    given: dict[str, Any] = {name: args[name] for name in Request.__dataclass_fields__ if name in args}
    try:
        numbers = [int(part) for part in str(args.seeds).split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {args.seeds} was given; give a number, or seeds as 0,1,7") from None
    if len(numbers) == 1 and "," not in str(args.seeds):
        require_number("--seeds", numbers[0], 1, 10_000)
    given["seeds"] = numbers[0] if len(numbers) == 1 and "," not in str(args.seeds) else numbers
    require_number("--parallel", args.parallel, 1, 1024)
    given |= {"arms": args.arm or [], "settings": parse_settings(args["set"] or [])}
    if args.plan and args.json:
        raise ConfigError("--json was given with --plan, which is text for people; leave one of them out")
    if args.plan:
        print(plan_comparison(**given))
        return 0
    try:
        result = run_comparison(**given)
    except Interrupted as stop:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"stopped by {stop}; the same command resumes {escape(str(stop.run))}", highlight=False)
        return 128 + stop.number
    print(result.to_json() if args.json else to_terminal(result.to_markdown()))
    return int(any(arm.status != "finished" for arm in result.arms))
