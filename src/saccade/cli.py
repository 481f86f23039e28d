"""The `saccade` command: finds the verb's file in `commands` and runs it."""

import signal
import sys
import warnings
from argparse import SUPPRESS, Action
from importlib import import_module
from pathlib import Path
from typing import TextIO

from jsonargparse import ArgumentParser, DefaultHelpFormatter
from rich.console import Console
from rich.markup import escape

from . import __version__

VERBS = ("train", "compare", "evaluate", "explain", "predict", "export", "serve", "data", "models", "benchmark")

# What PyTorch says, as a plain RuntimeError, when the CPU has no memory left.
NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")


class _Help(DefaultHelpFormatter):
    """Help that tells a default where there is one to tell."""

    def _get_help_string(self, action: Action) -> str:
        shown = action.default not in (None, False, SUPPRESS) and bool(action.option_strings)
        return f"{action.help or ''}{' (default: %(default)s)' if shown else ''}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = ArgumentParser(
        prog="saccade", description="Better context for vision transformers.", formatter_class=_Help
    )
    parser.add_argument(
        "--version", action="version", version=f"saccade {__version__}", help="Print the version and exit."
    )
    verbs = parser.add_subcommands(required=True, dest="verb")
    commands = {name: import_module(f".commands.{name}", __package__) for name in VERBS}
    for name, command in commands.items():
        verb = ArgumentParser(description=command.flags.__doc__, formatter_class=_Help)
        command.flags(verb)
        verbs.add_subcommand(name, verb, help=command.flags.__doc__)
    args = parser.parse_args(argv)
    given = args[args.verb]
    for name, value in vars(given).items():
        if isinstance(value, list) and (not value or [] in value):  # argparse makes this of `--name=--`
            parser.error(f"--{name.replace('_', '-')} was given without a value")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return commands[args.verb].run(given) or 0
    except KeyboardInterrupt:
        Console(stderr=True).print(f"saccade {args.verb}: stopped", highlight=False)
        return 128 + signal.SIGINT
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if type(error) is RuntimeError and not any(words in str(error) for words in NO_MEMORY):
            raise  # not one of ours: a fault, to be seen whole
        detail = _plain(error) or "out of memory"
        if isinstance(error, MemoryError) or type(error) is RuntimeError:
            detail = f"the memory is not enough ({detail.splitlines()[0]}); give a smaller batch, image size or model"
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]saccade {args.verb}:[/] {escape(detail)}", highlight=False)
        return 2


def _plain(error: BaseException) -> str:
    """Return what an error says; of one of the system's the code is left out and what to do is added."""
    text = str(error)
    if not isinstance(error, OSError) or not text.startswith("[Errno"):
        return text
    named = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{named + ': ' if named else ''}{error.strerror}; see that it is there and may be read and written"


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Show a warning of ours as a plain line, another one with where it comes from."""
    ours = Path(filename).is_relative_to(Path(__file__).parent)
    text = str(message) if ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip()
    Console(stderr=True, soft_wrap=True).print(f"[yellow]{escape(text)}[/]", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
