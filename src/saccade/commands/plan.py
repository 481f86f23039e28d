"""`saccade plan`."""

from argparse import ArgumentParser

from ..support.importing import quick_imports
from . import Args
from .train import add_settings


def flags(parser: ArgumentParser) -> None:
    """Print the settings of a training and what decided each, its duration and memory; nothing is trained."""
    add_settings(parser)


def run(args: Args) -> int:
    """Print the plan."""
    from ..settings import parse_settings

    settings = parse_settings(args["set"] or [])
    with quick_imports():
        from ..training.plan import plan
        from ..training.recipes import SHORT_FLAGS

    plugins = [part for text in args.plugin or [] for part in text.split("+")]
    named = {name: args[name] for name in SHORT_FLAGS if name not in ("data", "plugins")}
    found = plan(args.data, recipe=args.recipe, settings=settings, time=args.time, plugins=plugins, **named)
    print(found)
    return 0
