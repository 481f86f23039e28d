"""`saccade benchmark`."""

from argparse import ArgumentParser
from typing import Any

from rich.console import Console

from . import BATCH_SIZE, DEVICE, TARGET, Args, add_kernels


def flags(parser: ArgumentParser) -> None:
    """Measure throughput and peak memory of a model and a peer, in inference and training."""
    parser.add_argument("--model", required=True, help=TARGET)
    parser.add_argument("--peer", required=True, metavar="MODEL", help="model to compare with")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help=BATCH_SIZE)
    parser.add_argument("--img-size", type=int, default=224, metavar="PIXELS", help="input resolution in pixels")
    parser.add_argument("--device", default="cpu", help=DEVICE)
    add_kernels(parser)
    parser.add_argument("--precision", default="float32", help="float32, or autocast to bfloat16 or float16")
    parser.add_argument("--compile", action="store_true", help="also measure the models under torch.compile")


def run(args: Args) -> None:
    """Print images per second and peak memory of model and peer, for inference and training."""
    from ..building.loading import open_device
    from ..evaluation.speed import MODES, Setting, as_markdown, find_raced, race
    from ..settings.values import require_number

    args.model, args.peer = find_raced(args.model), find_raced(args.peer)
    require_number("--batch-size", args.batch_size, 1, 2**20)
    require_number("--img-size", args.img_size, 1, 16384)
    open_device(args.device)
    shared: dict[str, Any] = {name: args[name] for name in ("batch_size", "img_size", "device", "precision", "kernels")}
    settings = [
        Setting(mode=m, compiled=c, **shared) for m in MODES for c in ([False, True] if args.compile else [False])
    ]
    console = Console(stderr=True)
    results = []
    for setting in settings:
        with console.status(f"timing {setting.mode}{' compiled' if setting.compiled else ''}"):
            results.append((setting, race([args.model, args.peer], setting)))
    print(as_markdown(results))
