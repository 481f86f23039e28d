"""One verb of the `saccade` command a file: `flags` describes it to the parser, `run` does it."""

from argparse import ArgumentParser, Namespace
from typing import Any


class Args(Namespace):
    """What was given to a verb, by name: `args.epochs`, or `args["epochs"]`."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]


def add_weights(parser: ArgumentParser) -> None:
    """Add the flags of trained weights, and of samples that belong together, which several verbs have."""
    parser.add_argument(
        "--pretrained",
        action="store_const",
        const=True,
        default=None,
        help="start from timm's weights of the model, from its hub or from this machine",
    )
    parser.add_argument(
        "--checkpoint", default=None, metavar="FILE|RUN", help="start from these weights: a run's, or a file of them"
    )
    parser.add_argument(
        "--group", default=None, metavar="COLUMN", help="of a list: samples of one patient, video, ... stay together"
    )
