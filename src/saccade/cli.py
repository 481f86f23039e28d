"""The `saccade` command: finds the verb's file in `commands` and runs it."""

import sys
from importlib import import_module

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.markup import escape

VERBS = ("train", "compare", "evaluate", "explain", "predict", "export", "serve", "data", "models", "benchmark")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = ArgumentParser(prog="saccade", description="Better context for vision transformers.")
    verbs = parser.add_subcommands(required=True, dest="verb")
    commands = {name: import_module(f".commands.{name}", __package__) for name in VERBS}
    for name, command in commands.items():
        verb = ArgumentParser(description=command.flags.__doc__)
        command.flags(verb)
        verbs.add_subcommand(name, verb, help=command.flags.__doc__)
    args = parser.parse_args(argv)
    try:
        return commands[args.verb].run(args[args.verb]) or 0
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if type(error) is RuntimeError:
            raise  # not one of ours: a fault, to be seen whole
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]saccade {args.verb}:[/] {escape(str(error))}", highlight=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
