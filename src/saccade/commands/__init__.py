"""One verb of the `saccade` command a file: `flags` describes it to the parser, `run` does it."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from inspect import signature
from typing import Any


class Args(Namespace):
    """What was given to a verb, by name: `args.epochs`, or `args["epochs"]`."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def given_to(self, verb: Callable[..., Any], **other: Any) -> dict[str, Any]:
        """Return what the function behind a verb takes by keyword of what was given, with `other` instead."""
        taken = [name for name, one in signature(verb).parameters.items() if one.kind is one.KEYWORD_ONLY]
        return {name: self[name] for name in taken if name in self} | other


def add_weights(parser: ArgumentParser) -> None:
    """Add the flags of trained weights, and of samples that belong together, which several verbs have."""
    parser.add_argument(
        "--pretrained",
        action="store_true",
        default=None,
        help="start from timm's weights of the model, from its hub or from this machine",
    )
    parser.add_argument("--checkpoint", metavar="FILE|RUN", help="start from these weights: a run's, or a file of them")
    parser.add_argument("--group", metavar="COLUMN", help="of a list: samples of one patient, video, ... stay together")
