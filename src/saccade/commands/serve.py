"""`saccade serve`."""

from argparse import ArgumentParser

from . import Args, add_kernels


def flags(parser: ArgumentParser) -> None:
    """Serve models over HTTP, with a page: answers, views, two models side by side, runs and comparisons."""
    parser.add_argument("targets", nargs="+", metavar="RUN", help="runs, .onnx files, timm models' names or NAME@FILE")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; by default for this machine alone")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    add_kernels(parser)
    parser.add_argument("--token", help="clients must send it; better set as SACCADE_TOKEN, which `ps` does not show")
    parser.add_argument("--batch-size", type=int, default=32, help="images that share a forward pass at most")
    parser.add_argument("--wait-ms", type=float, default=5.0, help="an image waits so long for others at most")
    parser.add_argument("--queue", type=int, default=256, help="images that may wait; further ones are answered 503")
    parser.add_argument("--max-bytes", type=int, default=16 * 2**20, help="of an upload")
    parser.add_argument("--max-pixels", type=int, default=40_000_000, help="of an image")
    parser.add_argument(
        "--upload-seconds", type=float, default=15.0, help="from the first to the last byte of an upload"
    )
    parser.add_argument("--browse", action="append", metavar="DIR", help="folder of runs to list; repeatable")
    parser.add_argument("--allow-host", action="append", metavar="NAME", help="a further name of the server")
    parser.add_argument("--trust", action="store_true", help="open .pt2 files, which are programs")


def run(args: Args) -> None:
    """Serve until a signal to stop."""
    from ..deployment.serve import serve

    serve(args.targets, **args.given_to(serve, browse=args.browse or (), allow_hosts=args.allow_host or ()))
