"""One verb of the `saccade` command a file: `flags` describes it to the parser, `run` does it."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from inspect import signature
from typing import Any


class Args(Namespace):
    """What was given to a verb, by name: `args.epochs`, or `args["epochs"]`."""

    given: frozenset[str] = frozenset()  # names whose value is not the default

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def given_to(self, verb: Callable[..., Any], **other: Any) -> dict[str, Any]:
        """Return what the function behind a verb takes by keyword of what was given, with `other` instead."""
        taken = [name for name, one in signature(verb).parameters.items() if one.kind is one.KEYWORD_ONLY]
        return {name: self[name] for name in taken if name in self} | other

    def refuse_others(self, mode: str, verb: Callable[..., Any], *others: str) -> None:
        """Refuse flags that were given and that a verb does not take in this mode, so that none is left out in silence.

        Args:
            mode: what an error calls it, as in "with --folds".
            verb: the function behind it.
            others: flags that it takes beside the function's own.
        """
        unused = [name for name in sorted(self.given) if name not in {*signature(verb).parameters, *others}]
        if unused:
            from ..config import ConfigError

            flags = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ConfigError(
                f"{flags} {'were' if unused[1:] else 'was'} given {mode}, where nothing reads it; leave it out"
            )


def add_kernels(parser: ArgumentParser, *, default: str | None = "auto") -> None:
    """Add the switch of kernels; None leaves it to the settings."""
    parser.add_argument(
        "--kernels",
        default=default,
        metavar="auto|off|NAME,...",
        help="which of `saccade kernels` may run; --kernels=-NAME is all but one"
        + ("" if default else "; all if not given"),
    )


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
