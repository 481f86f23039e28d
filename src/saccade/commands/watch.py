"""`saccade watch`."""

from argparse import ArgumentParser

from . import Args


def flags(parser: ArgumentParser) -> None:
    """Follow a run while it trains, on a page: curves as they come, what is left, images as they are augmented."""
    parser.add_argument("run", metavar="RUN", help="folder of a run, which may be waited for")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; by default for this machine alone")
    parser.add_argument("--port", type=int, default=8010, help="0 takes a free one")
    parser.add_argument("--every", type=float, default=5.0, help="seconds after which the page looks again")


def run(args: Args) -> None:
    """Show the page until Ctrl-C."""
    from ..training.watch import watch

    watch(args.run, host=args.host, port=args.port, every=args.every, say=lambda line: print(line, flush=True))
