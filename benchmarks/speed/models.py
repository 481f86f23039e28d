"""Time saccade's models against timm's in one run and print a table with ratios.

    python benchmarks/speed/models.py                                         # the pairs below, on this machine's CPU
    python benchmarks/speed/models.py --device cuda --precision bfloat16 --batch-size 128 --compile
    python benchmarks/speed/models.py --pair nommer_tiny:swin_tiny_patch4_window7_224 --sizes 224 384 512 768 1024

A pair is MODEL:PEER. Rounds alternate between the two, so both meet the same machine; a figure is the median over
rounds, `spread` is (largest - smallest) / median, ratios are against the peer (speed: more is better, memory: less).
"""

import argparse
import platform
import sys
import time

import timm
import torch

import saccade
from saccade.evaluation.speed import MODES, PRECISIONS, Setting, Timing, as_markdown, race
from saccade.models import require_model

# Peers of about the same published cost.
PAIRS = [
    "glnet_stl:swin_tiny_patch4_window7_224",
    "glnet_4g:swin_tiny_patch4_window7_224",
    "nommer_tiny:swin_tiny_patch4_window7_224",
    "cvt_13:swin_tiny_patch4_window7_224",
    "t2t_vit_14:deit_small_patch16_224",
    "sot_tiny:deit_tiny_patch16_224",
    "sot_small:deit_small_patch16_224",
]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", metavar="MODEL:PEER", help="may be given several times")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224], help="image sides")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--compile", action="store_true", help="time compiled models beside eager ones")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    pairs = [pair.split(":") for pair in args.pair or PAIRS]
    for pair in pairs:
        if len(pair) != 2:
            sys.exit(f"--pair {':'.join(pair)} was given; write MODEL:PEER")
        for name in pair:
            require_model(name)
    print(machine(args.device))
    for names in pairs:
        results: list[tuple[Setting, dict[str, Timing]]] = []
        for size in args.sizes:
            for mode in args.modes:
                for compiled in [False, True] if args.compile else [False]:
                    setting = Setting(
                        mode=mode,
                        compiled=compiled,
                        batch_size=args.batch_size,
                        img_size=size,
                        device=args.device,
                        precision=args.precision,
                        channels_last=args.channels_last,
                        rounds=args.rounds,
                        seconds=args.seconds,
                    )
                    torch.compiler.reset()
                    results.append((setting, race(names, setting)))
        print(f"\n{names[0]} against {names[1]}\n\n{as_markdown(results)}", flush=True)


def machine(device: str) -> str:
    on_gpu = device.startswith("cuda")
    chip = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    versions = f"python {platform.python_version()}, torch {torch.__version__}, timm {timm.__version__}"
    command = f"python benchmarks/speed/models.py {' '.join(sys.argv[1:])}"
    return f"{chip}; {versions}, saccade {saccade.__version__}; {time.strftime('%Y-%m-%d')}\nCommand: {command}"


if __name__ == "__main__":
    main()
