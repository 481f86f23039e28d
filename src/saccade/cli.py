"""The `saccade` command: import the file of a command, parse its flags and run it."""

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
from .support.wording import is_memory_error

VERBS = (
    *("train", "plan", "watch", "tune", "compare", "evaluate", "explain"),
    *("predict", "export", "serve", "data", "models", "kernels", "benchmark"),
)


class _Help(HelpFormatter):
    """Help formatter that shows defaults, except None, False and empty ones."""

    def _get_help_string(self, action: Action) -> str:
        unset = action.default is None or action.default is False or action.default in ("", SUPPRESS)
        shown = not unset and bool(action.option_strings)
        return f"{action.help or ''}{' (default: %(default)s)' if shown else ''}"


class Parser(ArgumentParser):
    """A parser with one-line errors and suggestions."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, formatter_class=_Help, allow_abbrev=False)

    def read(self, words: list[str]) -> Args:
        """Parse the arguments; an unknown flag is reported before a missing one."""
        for word in words[: words.index("--") if "--" in words else None]:
            flag, _, value = word.partition("=")
            if value == "--":  # end of flags in argparse
                self.error(f"{flag} needs a value")
            is_flag = len(word) > 1 and word.startswith("-") and " " not in flag
            if is_flag and flag not in self._option_string_actions and not re.match(r"-\.?\d", word):
                self.error(f"unknown flag {flag}{self._suggest(flag)}")
        args = self.parse_args(words, Args())
        args.given = frozenset(name for name, value in vars(args).items() if value != self.get_default(name))
        return args

    def _suggest(self, flag: str) -> str:
        """Return a suggestion of the flag or setting that was probably meant."""
        from .settings import TrainConfig, flatten
        from .settings.aliases import find_alias

        known, name = self._option_string_actions, flag.strip("-").replace("-", "_")
        named = (setting for setting in flatten(TrainConfig()) if setting.rpartition(".")[2] == name)
        setting = find_alias(flag) or next(named, "")
        own = f"--{setting.rpartition('.')[2].replace('_', '-')}"
        if setting and own not in known and "--set" in known:
            return f"; use --set {setting}=VALUE"
        return f"; did you mean {own!r}?" if own in known else _nearest(flag, known)

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        text = message.removeprefix("argument ")
        self.exit(2, f"{self.prog}: {text}{'' if text.endswith('?') else '.'} See {self.prog} --help\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    keep_freed_memory()
    try:
        status = _main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        if argv is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def keep_freed_memory() -> None:
    """Let PyTorch's allocator on Arm keep freed memory for a second, unless configured by the user.

    By default it returns memory after ten milliseconds, about once an operation: allocating it again took a sixth of a
    training step. The setting is read once, when PyTorch is imported.
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
    parser.set_defaults(since=begun)  # later imports count for the time budget
    return _run(command, verb, parser.read(words[1:]))


def _without_verb(words: list[str]) -> NoReturn:
    """Handle a command line without a command: help, version, or an error."""
    parser = Parser("saccade", "Better context for vision transformers.")
    parser.add_argument(
        "--version", action="version", version=f"saccade {__version__}", help="print the version and exit"
    )
    verbs = parser.add_argument_group("commands (see saccade COMMAND --help)")
    for name in VERBS:
        description = import_module(f".commands.{name}", __package__).flags.__doc__
        verbs.add_argument(name, nargs="?", help=description)
    parser.usage = "saccade COMMAND ..."
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not words[0].startswith("-"):
        parser.error(f"unknown command {words[0]}; choose from {', '.join(VERBS)}{_nearest(words[0], VERBS)}")
    parser.read(words[:1])
    parser.error(f"{words[0]} precedes the command; start with one of {', '.join(VERBS)}")


def _nearest(word: str, known: Any) -> str:
    from .settings import nearest

    return nearest(word, known)


def _run(command: Any, verb: str, args: Args) -> int:
    """Run a command; print errors of input or system in one line."""
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
            raise  # a bug: keep the traceback
        detail = _plain(error)
        if isinstance(error, MemoryError) or type(error) is RuntimeError:
            reason = f" ({detail.splitlines()[0]})" if detail else ""
            detail = f"out of memory{reason}; use a smaller batch size, image size or model"
        _say(detail, before=f"[bold red]saccade {verb}:[/] ")
        return 2


def _say(text: str, *, before: str = "", after: str = "") -> None:
    from rich.console import Console
    from rich.markup import escape

    Console(stderr=True, soft_wrap=True).print(f"{before}{escape(text)}{after}", highlight=False)


def _plain(error: BaseException) -> str:
    """Return the message of an error; system errors without errno, and with advice."""
    text = str(error)
    if not isinstance(error, OSError) or error.errno is None:
        return text
    named = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return (
        f"{named + ': ' if named else ''}{error.strerror}; check that it exists and that you have permission to read "
        "and write it"
    )


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Print saccade's warnings in one line, others with file and line."""
    ours = Path(filename).is_relative_to(Path(__file__).parent)
    text = str(message) if ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip()
    _say(text, before="[yellow]", after="[/]")


if __name__ == "__main__":
    sys.exit(main())
