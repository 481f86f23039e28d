"""One verb of the `saccade` command a file: `flags` describes it to the parser, `run` does it."""

from argparse import Namespace
from typing import Any


class Args(Namespace):
    """What was given to a verb, by name: `args.epochs`, or `args["epochs"]`."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]
