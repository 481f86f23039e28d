"""`saccade serve`."""

from argparse import ArgumentParser

from . import DEVICE, HOST, PORT, TRUST, Args, add_kernels


def flags(parser: ArgumentParser) -> None:
    """Serve models over HTTP, with a web page for predictions, explanations, runs and comparisons."""
    parser.add_argument(
        "targets", nargs="+", metavar="MODEL", help="run directory, .onnx or .pt2 file, timm model name or NAME@FILE"
    )
    parser.add_argument("--host", default="127.0.0.1", help=HOST)
    parser.add_argument("--port", type=int, default=8000, help=PORT)
    parser.add_argument("--device", default="cpu", help=DEVICE)
    add_kernels(parser)
    parser.add_argument(
        "--token",
        help="bearer token that clients must send; the environment variable SACCADE_TOKEN is safer, as `ps` does not "
        "show it (default: none)",
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="maximum batch size")
    parser.add_argument(
        "--wait-ms",
        type=float,
        default=5.0,
        metavar="MS",
        help="maximum time in milliseconds that an image waits for others to fill a batch",
    )
    parser.add_argument(
        "--queue",
        type=int,
        default=256,
        metavar="N",
        help="maximum number of images waiting for a model, else HTTP 503",
    )
    parser.add_argument(
        "--max-bytes", type=int, default=16 * 2**20, metavar="BYTES", help="maximum size of an upload in bytes"
    )
    parser.add_argument(
        "--max-pixels", type=int, default=40_000_000, metavar="N", help="maximum number of pixels of an image"
    )
    parser.add_argument(
        "--upload-seconds", type=float, default=15.0, metavar="SECONDS", help="timeout of an upload in seconds"
    )
    parser.add_argument(
        "--browse", action="append", metavar="DIR", help="directory of runs and comparisons to list; repeatable"
    )
    parser.add_argument(
        "--allow-host", action="append", metavar="NAME", help="additional host name to accept in requests; repeatable"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(args: Args) -> None:
    """Serve until a signal to stop."""
    from ..deployment.serve import serve

    serve(args.targets, **args.given_to(serve, browse=args.browse or (), allow_hosts=args.allow_host or ()))
