"""`saccade compare`."""

from argparse import ArgumentParser
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..settings.help import help_of
from ..support.importing import quick_imports
from . import (
    COLUMNS,
    COLUMNS_AS,
    DATA,
    DEVICE,
    IMG_SIZE,
    JSON,
    QUIET,
    RECIPE,
    SET,
    TASK,
    Args,
    add_kernels,
    add_weights,
)

WRITES = r"cost\.json"  # files written in a run's folder


def flags(parser: ArgumentParser) -> None:
    """Compare models, plug-ins or settings over several seeds, all else held equal, with confidence intervals."""
    parser.add_argument("data", metavar="DATA", nargs="?", help=DATA)
    parser.add_argument(
        "--arm",
        action="append",
        help="arm to compare: `base`, or plug-ins and settings joined by +, e.g. broadcast, drloc:weight=0.3+lr=0.003, "
        "NAME:=model=glnet_stl; repeat for each arm; the reference is `base`, else the first arm",
    )
    parser.add_argument(
        "--folds",
        type=int,
        metavar="K",
        help="number of cross-validation folds, e.g. 5 (default: use the validation split)",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="with --folds: repetitions with different splits"
    )
    parser.add_argument(
        "--seeds",
        metavar="N|LIST",
        help="number of seeds, or a list of them, e.g. 0,1,7 (default: 5; with --time as many as fit, 3 to 10)",
    )
    parser.add_argument("--columns", metavar=COLUMNS_AS, help=COLUMNS)
    parser.add_argument("--task", help=TASK)
    parser.add_argument(
        "--model", metavar="NAME", help="model of all arms that do not set their own (default: the recipe's)"
    )
    add_weights(parser)
    parser.add_argument("--recipe", metavar="NAME|FILE", help=RECIPE)
    parser.add_argument("--epochs", type=int, metavar="N", help=help_of("schedule.epochs", default="the recipe's"))
    parser.add_argument("--batch-size", type=int, metavar="N", help=help_of("optim.batch_size", default="as for train"))
    parser.add_argument("--lr", type=float, help=help_of("optim.lr", default="as for train"))
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help=IMG_SIZE)
    parser.add_argument(
        "--time",
        "--budget",
        dest="budget",
        metavar="TIME",
        help="time budget for the whole comparison, e.g. 30m; epochs are reduced to fit, and model, image size and "
        "number of seeds are chosen unless given (default: none)",
    )
    parser.add_argument(
        "--tune",
        nargs="?",
        const="10m",
        metavar="TIME",
        help="tune learning rate, weight decay and augmentation of each arm first, for TIME per arm (10m if omitted), "
        "on a subset of the training set",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="output directory (default: one under runs/, named by the request)"
    )
    parser.add_argument("--metric", metavar="NAME", help="metric to compare (default: the task's primary metric)")
    parser.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="largest difference that does not matter, e.g. 0.005; needed for the verdict `no difference`",
    )
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="number of concurrent runs (default: one per GPU, 1 on a CPU)"
    )
    parser.add_argument("--device", help=f"{DEVICE} (default: all GPUs if available, else cpu)")
    add_kernels(parser, default=None)
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help=f"{SET}; applies to all arms")
    parser.add_argument(
        "--seeds-fixed",
        action="store_true",
        help="treat seeds as fixed: conclusions hold for these trained models only; allows a single seed",
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and exit")
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_argument("--overwrite", action="store_true", help="replace another comparison in --out")
    parser.add_argument("--quiet", action="store_true", help=QUIET)


def run(args: Args) -> int:
    """Run a comparison and print what it found; the exit status is 1 if an arm failed."""
    from ..support.spawning import start_early

    start_early(args.device)  # it imports while this process does
    with quick_imports():
        from ..comparison.compare import compare as run_comparison
        from ..comparison.compare import plan_comparison
        from ..comparison.plan.request import Request
        from ..report.document import to_terminal
        from ..settings import ConfigError, parse_settings
        from ..settings.values import require_number
        from ..training.loop import Interrupted

    given: dict[str, Any] = {name: args[name] for name in Request.__dataclass_fields__ if name in args}
    if args.seeds is not None:
        given["seeds"] = _read_seeds(args.seeds)
    require_number("--parallel", args.parallel, 1, 1024)
    given |= {"arms": args.arm or [], "settings": parse_settings(args["set"] or [])}
    if args.plan and args.json:
        raise ConfigError("--json cannot be combined with --plan, which prints text only; remove one of them")
    if args.plan:
        print(plan_comparison(**given))
        return 0
    try:
        result = run_comparison(**given)
    except Interrupted as stop:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"stopped by {stop}; resume {escape(str(stop.run))} with the same command", highlight=False)
        return 128 + stop.number
    print(result.to_json() if args.json else to_terminal(result.to_markdown()))
    return int(any(arm.status != "finished" for arm in result.arms))


def _read_seeds(text: str) -> int | list[int]:
    """Parse a number of seeds, or a list."""
    from ..settings import ConfigError
    from ..settings.values import require_number

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: expected a number of seeds, or a list such as 0,1,7") from None
    if "," in text:
        return numbers
    require_number("--seeds", numbers[0], 1, 10_000)
    return numbers[0]
