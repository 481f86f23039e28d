"""`saccade train`."""

import signal
import sys
from argparse import ArgumentParser

from rich.console import Console
from rich.markup import escape

from ..settings.help import help_of
from ..support.importing import quick_imports
from . import (
    AUTO_WORKERS,
    BEST_DEVICE,
    COLUMNS,
    COLUMNS_AS,
    DATA,
    IMG_SIZE,
    MODEL,
    RECIPE,
    SET,
    SILENT,
    TASK,
    Args,
    add_kernels,
    add_weights,
)

# In a run's folder, as a pattern of paths; nothing that no verb writes is ever removed from one.
WRITES = (
    r"config\.yaml|metrics\.(jsonl|csv)|(summary|decisions|bad_samples|bad_pictures)\.json|report\.html|(model|last|best|predictions|scores)\.safetensors"
    r"|state(/(\.lock|\.torchrun|\.?(damaged-)?step-[\d.]+(part)?(/(state\.json|shard-\d+-of-\d+\.safetensors))?))?"
    r"|tensorboard(/events\.out\.[^/]+)?"
)


def flags(parser: ArgumentParser) -> None:
    """Train a model on your images, or resume a run."""
    add_settings(parser)
    parser.add_argument("--out", metavar="DIR", help="output directory of the run (default: a new one under runs/)")
    parser.add_argument("--resume", metavar="RUN", help="resume a run directory from its last saved state")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--quiet", action="store_true", help=SILENT)
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the resolved settings and exit; `saccade plan` explains them",
    )


def add_settings(parser: ArgumentParser) -> None:
    """Add the dataset and the flags that are settings of a run."""
    parser.add_argument("data", metavar="DATA", nargs="?", help=DATA)
    parser.add_argument("--columns", metavar=COLUMNS_AS, help=COLUMNS)
    parser.add_argument("--task", help=TASK)
    parser.add_argument("--model", metavar="NAME", help=MODEL)
    parser.add_argument(
        "--plugin",
        action="append",
        help="plug-in to add to the recipe's, e.g. broadcast or drloc:weight=0.3; repeatable; `none` removes the "
        "recipe's",
    )
    add_weights(parser)
    parser.add_argument("--recipe", metavar="NAME|FILE", help=RECIPE)
    parser.add_argument("--epochs", type=int, metavar="N", help=help_of("schedule.epochs"))
    parser.add_argument("--batch-size", type=int, metavar="N", help=help_of("optim.batch_size"))
    parser.add_argument("--lr", type=float, help=help_of("optim.lr"))
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help=IMG_SIZE)
    parser.add_argument("--seed", type=int, metavar="N", help=help_of("seed", default="0"))
    parser.add_argument("--device", help=BEST_DEVICE)
    add_kernels(parser, default=None)
    parser.add_argument("--workers", type=int, metavar="N", help=AUTO_WORKERS)
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help=SET)
    parser.add_argument(
        "--time",
        help="time budget, e.g. 10m or 1h30m; the number of epochs is reduced to fit (default: none; on a CPU 15m "
        "if no recipe, model, optimizer, schedule or image size is set)",
    )


def run(args: Args) -> int:
    """Train, or print the settings that would be trained with."""
    from ..settings import parse_settings, to_yaml

    settings = parse_settings(args["set"] or [])
    plugins = [part for text in args.plugin or [] for part in text.split("+")]
    if args.print_config:
        with quick_imports():
            from ..training.recipes import SHORT_FLAGS
            from ..training.resolve import resolved_config

        named = {name: args[name] for name in SHORT_FLAGS if name != "plugins"}
        print(to_yaml(resolved_config(args.recipe, settings, **named, plugins=plugins)), end="")
        if args.time is not None:
            print("--time has no effect here: `saccade plan` times a few steps and prints the epochs", file=sys.stderr)
        return 0
    with quick_imports():
        from ..training.loop import Interrupted
        from ..training.train import train as run_training

    try:
        run_training(args.data, **args.given_to(run_training, plugins=plugins, settings=settings))
    except Interrupted as stop:
        Console(stderr=True, soft_wrap=True).print(
            f"stopped by {stop}; resume with: saccade train --resume {escape(str(stop.run))}\n"
            f"evaluate the weights so far: saccade evaluate {escape(str(stop.run))}"
        )
        return 128 + stop.number
    except KeyboardInterrupt as stop:
        begun = stop.args[0] if stop.args else args.resume
        then = f"resume from the last saved state with: saccade train --resume {begun}"
        Console(stderr=True, soft_wrap=True).print(
            f"stopped immediately; {then if begun else 'training had not started, nothing was written'}", markup=False
        )
        return 128 + signal.SIGINT
    return 0
