"""The `saccade` command: finds the verb's file in `commands` and runs it; what is mistyped is answered before that."""

import os
import re
import signal
import sys
import time
import warnings
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from . import __version__
from .commands import Args
from .wording import is_memory_error

VERBS = (
    *("train", "watch", "tune", "compare", "evaluate", "explain"),
    *("predict", "export", "serve", "data", "models", "benchmark"),
)


class _Help(HelpFormatter):
    """Help with every default that is not None, False or empty."""

    def _get_help_string(self, action: Action) -> str:
        unset = action.default is None or action.default is False or action.default in ("", SUPPRESS)
        shown = not unset and bool(action.option_strings)
        return f"{action.help or ''}{' (default: %(default)s)' if shown else ''}"


class Parser(ArgumentParser):
    """A parser that answers a mistake in one line, with what was most likely meant."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, formatter_class=_Help, allow_abbrev=False)

    def read(self, words: list[str]) -> Args:
        """Return what was given; flags that do not exist are named before anything that is missing."""
        for word in words[: words.index("--") if "--" in words else None]:
            flag, _, value = word.partition("=")
            if value == "--":  # which argparse takes for the end of flags
                self.error(f"{flag} was given without a value")
            is_flag = len(word) > 1 and word.startswith("-") and " " not in flag
            if is_flag and flag not in self._option_string_actions and not re.match(r"-\.?\d", word):
                self.error(f"there is no flag {flag}{_nearest(flag, self._option_string_actions)}")
        args = self.parse_args(words, Args())
        args.given = frozenset(name for name, value in vars(args).items() if value != self.get_default(name))
        return args

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and stop."""
        text = message.removeprefix("argument ")
        self.exit(2, f"{self.prog}: {text}{'' if text.endswith('?') else '.'} See {self.prog} --help\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    keep_freed_memory()
    try:
        status = _main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        if argv is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def keep_freed_memory() -> None:
    """Have PyTorch's allocator on Arm keep what was freed for a second, unless the user has said how long.

    By itself it gives memory back after ten milliseconds, which is about once an operation: a sixth of a training
    step's time went into getting it again. It reads the setting once, when PyTorch is imported.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")


def _main(words: list[str]) -> int:
    begun, verb = time.monotonic(), words[0] if words else ""
    if verb not in VERBS:
        _without_verb(words)
    command = import_module(f".commands.{verb}", __package__)
    parser = Parser(f"saccade {verb}", command.flags.__doc__)
    command.flags(parser)
    parser.set_defaults(since=begun)  # what is imported after this belongs to a given time, too
    return _run(command, verb, parser.read(words[1:]))


def _without_verb(words: list[str]) -> NoReturn:
    """Answer a command that begins with no verb: help, the version, or which verbs there are."""
    parser = Parser("saccade", "Better context for vision transformers.")
    parser.add_argument("--version", action="version", version=f"saccade {__version__}", help="print it and exit")
    verbs = parser.add_argument_group("verbs, each with a --help of its own")
    for name in VERBS:
        said = import_module(f".commands.{name}", __package__).flags.__doc__
        verbs.add_argument(name, nargs="?", help=said)
    parser.usage = "saccade VERB ..."
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not words[0].startswith("-"):
        parser.error(f"there is no verb {words[0]}; there are {', '.join(VERBS)}{_nearest(words[0], VERBS)}")
    parser.read(words[:1])
    parser.error(f"{words[0]} was given; name a verb first: {', '.join(VERBS)}")


def _nearest(word: str, known: Any) -> str:
    from .config import nearest

    return nearest(word, known)


def _run(command: Any, verb: str, args: Args) -> int:
    """Run a verb; what goes wrong by no fault of ours is one line."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return command.run(args) or 0
    except KeyboardInterrupt:
        _say(f"saccade {verb}: stopped")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if type(error) is RuntimeError and not is_memory_error(error):
            raise  # not one of ours: a fault, to be seen whole
        detail = _plain(error) or "out of memory"
        if isinstance(error, MemoryError) or type(error) is RuntimeError:
            detail = f"the memory is not enough ({detail.splitlines()[0]}); give a smaller batch, image size or model"
        _say(detail, before=f"[bold red]saccade {verb}:[/] ")
        return 2


def _say(text: str, *, before: str = "", after: str = "") -> None:
    from rich.console import Console
    from rich.markup import escape

    Console(stderr=True, soft_wrap=True).print(f"{before}{escape(text)}{after}", highlight=False)


def _plain(error: BaseException) -> str:
    """Return what an error says; of one of the system's the code is left out and what to do is added."""
    text = str(error)
    if not isinstance(error, OSError) or error.errno is None:
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
    _say(text, before="[yellow]", after="[/]")


if __name__ == "__main__":
    sys.exit(main())
