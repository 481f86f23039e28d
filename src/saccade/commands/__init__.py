"""Commands of `saccade`, one per file: `flags` defines the arguments, `run` executes the command."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from inspect import signature
from typing import Any

from ..settings.help import help_of

# Help of flags shared by several commands; that of settings is in their fields.
DATA = help_of("data.path")
TASK = help_of("task")
MODEL = help_of("model.name")
RECIPE = help_of("recipe")
COLUMNS = help_of("data.columns")
COLUMNS_AS = "ROLE=COLUMN,..."
IMG_SIZE = help_of("data.img_size")
TARGET = "run directory, weights file, timm model name or NAME@FILE (a model name and a weights file)"
DEVICE, BEST_DEVICE = help_of("engine.device", default=""), help_of("engine.device")
WORKERS, AUTO_WORKERS = help_of("data.workers", default=""), help_of("data.workers")
THREADS = "number of image-reading threads"
SET = "any other setting, e.g. optim.weight_decay=0.1; repeatable"
BATCH_SIZE = "batch size"
JSON = "print the result as JSON"
QUIET = "print only the result"
SILENT = "print no progress"
HOST = "address to listen on; the default accepts connections from this machine only"
PORT = "port to listen on; 0 picks a free one"
TRUST = "load .pt2 files, which can execute arbitrary code"


class Args(Namespace):
    """Parsed arguments by name: `args.epochs`, or `args["epochs"]`."""

    given: frozenset[str] = frozenset()  # names of arguments given by the user

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def given_to(self, verb: Callable[..., Any], **other: Any) -> dict[str, Any]:
        """Return keyword arguments for a command's function, with `other` overriding them."""
        taken = [name for name, one in signature(verb).parameters.items() if one.kind is one.KEYWORD_ONLY]
        return {name: self[name] for name in taken if name in self} | other

    def refuse_others(self, mode: str, verb: Callable[..., Any], *others: str) -> None:
        """Refuse given flags that a command does not support in this mode.

        Args:
            mode: the mode's name in errors, such as "with --folds".
            verb: the command's function in this mode.
            others: further supported flags.
        """
        unused = [name for name in sorted(self.given) if name not in {*signature(verb).parameters, *others}]
        if unused:
            from ..settings import ConfigError

            flags = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ConfigError(
                f"{flags} {'have' if unused[1:] else 'has'} no effect {mode}; remove {'them' if unused[1:] else 'it'}"
            )


def add_kernels(parser: ArgumentParser, *, default: str | None = "auto") -> None:
    """Add the flag --kernels; a default of None leaves it to the settings."""
    parser.add_argument(
        "--kernels",
        default=default,
        metavar="auto|off|NAME,...",
        help=help_of("engine.kernels"),
    )


def add_weights(parser: ArgumentParser) -> None:
    """Add the flags of initial weights and groups."""
    parser.add_argument(
        "--pretrained",
        action="store_true",
        default=None,
        help=help_of("model.pretrained"),
    )
    parser.add_argument("--checkpoint", metavar="FILE|RUN", help=help_of("model.checkpoint"))
    parser.add_argument(
        "--group",
        metavar="COLUMN",
        help=help_of("data.group"),
    )
