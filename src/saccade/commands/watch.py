"""`saccade watch`."""

from argparse import ArgumentParser

from . import HOST, PORT, Args


def flags(parser: ArgumentParser) -> None:
    """Serve a page that follows a run while it trains: curves, time left, augmented images."""
    parser.add_argument("run", metavar="RUN", help="run directory; it may not exist yet")
    parser.add_argument("--host", default="127.0.0.1", help=HOST)
    parser.add_argument("--port", type=int, default=8010, help=PORT)
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="SECONDS", help="refresh interval of the page in seconds"
    )


def run(args: Args) -> None:
    """Show the page until Ctrl-C."""
    from ..training.watch import watch

    watch(args.run, host=args.host, port=args.port, every=args.every, say=lambda line: print(line, flush=True))
