"""`saccade train`."""

import signal
from argparse import ArgumentParser

from rich.console import Console
from rich.markup import escape

from ..importing import quick_imports
from . import Args, add_weights

# In a run's folder, as a pattern of paths; nothing that no verb writes is ever removed from one.
WRITES = (
    r"config\.yaml|metrics\.(jsonl|csv)|(summary|bad_samples|bad_pictures)\.json|report\.html|(model|last|best|predictions|scores)\.safetensors"
    r"|state(/(\.lock|\.torchrun|\.?(damaged-)?step-[\d.]+(part)?(/(state\.json|shard-\d+-of-\d+\.safetensors))?))?"
    r"|tensorboard(/events\.out\.[^/]+)?"
)


def flags(parser: ArgumentParser) -> None:
    """Train a model on your images, or resume a run that was stopped."""
    parser.add_argument(
        "data", nargs="?", help="a folder of class folders, a list, an array file, shards; nothing: a set inside"
    )
    parser.add_argument("--columns", help="of a list, which are what: image=name,label=breed")
    parser.add_argument(
        "--task",
        help="classify, multilabel, regress, ..., multilabel:loss=asymmetric; by the data's layout if not given",
    )
    parser.add_argument("--model", help="a model's name, ours or timm's")
    parser.add_argument(
        "--plugin",
        action="append",
        help="beside the recipe's: broadcast, drloc:weight=0.3, ...; repeatable, none takes the recipe's off",
    )
    add_weights(parser)
    parser.add_argument("--recipe", help="a recipe's name or a YAML file; `small`, or with trained weights `finetune`")
    parser.add_argument("--epochs", type=int, help="passes over the images; 100 in `small`")
    parser.add_argument("--batch-size", type=int, help="images a step; 256 in `small`, less for small sets")
    parser.add_argument("--lr", type=float, help="the highest learning rate; the recipe's if not given")
    parser.add_argument("--img-size", type=int, help="side of the images; by the images if not given")
    parser.add_argument("--seed", type=int, help="of weights, order and augmentation")
    parser.add_argument("--out", help="the run's folder; a new one under runs/ if not given")
    parser.add_argument("--resume", help="a run's folder to resume")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; a GPU if there is one")
    parser.add_argument("--workers", type=int, help="processes that read files")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="any other setting; repeatable")
    parser.add_argument("--time", help="that the run may take, such as 10m or 1h30m: its epochs are fitted to it")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that --out names")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parser.add_argument("--print-config", action="store_true", help="print the settings and stop")


def run(args: Args) -> int:
    """Train, or print the settings that would be trained with."""
    from ..config import parse_settings, to_yaml

    settings = parse_settings(args["set"] or [])
    with quick_imports():
        from ..training.loop import Interrupted
        from ..training.recipes import SHORT_FLAGS, configure, gather_settings
        from ..training.train import train as run_training

    plugins = [part for text in args.plugin or [] for part in text.split("+")]
    if args.print_config:
        short = {name: args[name] for name in SHORT_FLAGS if name != "plugins"}
        print(to_yaml(configure(args.recipe, gather_settings(settings, **short, plugins=plugins))), end="")
        return 0
    try:
        run_training(args.data, **args.given_to(run_training, plugins=plugins, settings=settings))
    except Interrupted as stop:
        Console(stderr=True, soft_wrap=True).print(
            f"stopped by {stop}; resume with: saccade train --resume {escape(str(stop.run))}\n"
            f"the weights so far can be used: saccade evaluate {escape(str(stop.run))}"
        )
        return 128 + stop.number
    except KeyboardInterrupt as stop:
        begun = stop.args[0] if stop.args else args.resume
        then = f"resume from the last state with: saccade train --resume {begun}"
        Console(stderr=True, soft_wrap=True).print(
            f"stopped at once; {then if begun else 'the run had not begun, and nothing was written'}", markup=False
        )
        return 128 + signal.SIGINT
    return 0
