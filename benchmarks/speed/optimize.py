"""Time models against what `saccade.optimize` makes of them in one run and print a table.

    python benchmarks/speed/optimize.py                                     # the models below, on this machine's CPU
    python benchmarks/speed/optimize.py --model resnet50 --batch-size 8
    python benchmarks/speed/optimize.py --device cuda --batch-size 128 --compile

MODEL+broadcast is a model with ContextBroadcast attached. Rounds alternate between a model and its optimized copy, so
that both meet the same machine. Images/s are medians over rounds; the gain is the median over rounds of the copy's
speed over the model's in the same round, with its smallest and largest. Trust no gain whose range includes 1. The
difference is the largest of an output on images that the copy was not made with, in shares of the largest output.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

import saccade
from saccade.deployment.optimize import optimize
from saccade.evaluation.speed import Setting, create_for, repeats_in, seconds_of
from saccade.models import require_model

MODELS = [
    "glnet_stl",
    "glnet_4g",
    "nommer_tiny",
    "cvt_13",
    "t2t_vit_14",
    "sot_tiny",
    "sot_small",
    "resnet50",
    "deit3_small_patch16_224",
    "vit_tiny_patch16_224+broadcast",
]
BROADCAST = "+broadcast"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="image side")
    parser.add_argument("--compile", action="store_true", help="compile both")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    names = args.model or MODELS
    for name in names:
        require_model(name.removesuffix(BROADCAST))
    print(machine(args.device))
    print("\n| model | batch | size | images/s | optimized | gain | range | difference |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |", flush=True)
    for name in names:
        print(row(name, args), flush=True)
    print(f"\nLoad at the end: {load()}")


def row(name: str, args: argparse.Namespace) -> str:
    setting = Setting(
        batch_size=args.batch_size, img_size=args.size, device=args.device, rounds=args.rounds, seconds=args.seconds
    )
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    images, others = torch.randn(2, args.batch_size, 3, args.size, args.size, generator=generator).to(args.device)
    model = build(name, args.size).to(args.device).eval()
    fast = optimize(model, images, compile=args.compile)
    with torch.inference_mode():
        expected = model(others)
        difference = ((fast(others) - expected).abs().max() / expected.abs().max()).item()
    steps = [step_of(torch.compile(model) if args.compile else model, images), step_of(fast, images)]
    for step in steps:
        step()
    counts = [repeats_in(step, setting) for step in steps]
    rounds = []
    for _ in range(setting.rounds):
        seconds = [seconds_of(step, count, args.device) for step, count in zip(steps, counts, strict=True)]
        rounds.append([args.batch_size * count / s for count, s in zip(counts, seconds, strict=True)])
    plain, optimized = (statistics.median(values) for values in zip(*rounds, strict=True))
    gains = [after / before for before, after in rounds]
    return (
        f"| {name} | {args.batch_size} | {args.size} | {plain:.3g} | {optimized:.3g} | {statistics.median(gains):.2f}x "
        f"| {min(gains):.2f} to {max(gains):.2f} | {difference:.0e} |"
    )


def build(name: str, size: int) -> nn.Module:
    """Build a model with norms and scales as training leaves them: all different, none of them one."""
    model = create_for(name.removesuffix(BROADCAST), size)
    generator = torch.Generator().manual_seed(1)
    for key, value in model.state_dict().items():
        if key.endswith(("running_var", "gamma")):
            value.uniform_(0.5, 2, generator=generator)
        elif key.endswith("running_mean"):
            value.normal_(std=0.1, generator=generator)
    if name.endswith(BROADCAST):
        saccade.attach(model, saccade.ContextBroadcast())
    return model


def step_of(model: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


def machine(device: str) -> str:
    on_gpu = device.startswith("cuda")
    chip = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    versions = f"python {platform.python_version()}, torch {torch.__version__}, timm {timm.__version__}"
    command = " ".join(["python benchmarks/speed/optimize.py", *sys.argv[1:]])
    date = time.strftime("%Y-%m-%d")
    return f"{chip}; {versions}, saccade {saccade.__version__}; {date}\nCommand: {command}\nLoad before: {load()}"


def load() -> str:
    return f"{os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores over the last minute"


if __name__ == "__main__":
    main()
