"""Time the depthwise kernel in Triton with several tiles beside the library's, and check what it computes.

    python benchmarks/depthwise.py                                    # about 60 s of an H200: processes that take turns
    TRITON_INTERPRET=1 DEV=cpu python benchmarks/depthwise.py --small  # a trial on the CPU

A figure is the median of calls in milliseconds, bfloat16, on maps larger than the cache. "forward" has the sum with the
map (3 x 3) and GELU inside, "turned", the gradient of the map, the sum; "library" is cuDNN's convolution alone.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.layers import depthwise_triton
from saccade.layers.depthwise import convolve
from saccade.layers.depthwise_triton import Tiles, cells_of, run_convolve

DEVICE = os.environ.get("DEV", "cuda")
MAPS = [  # images, side, channels, side of the kernel, whether GELU follows
    (256, 56, 192, 3, True),
    (256, 28, 384, 3, True),
    (256, 14, 768, 3, True),
    (256, 7, 1536, 3, True),
    (1024, 16, 288, 3, True),
    (1024, 8, 576, 3, True),
    (256, 56, 64, 3, False),
    (256, 14, 256, 3, False),
    (256, 56, 64, 5, False),
    (256, 28, 128, 5, False),
    (256, 14, 256, 5, False),
    (256, 56, 96, 5, False),
    (256, 14, 384, 5, False),
    (1024, 16, 96, 5, False),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny maps, to try the script")
    parser.add_argument("--at-once", type=int, default=14, help="processes")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    args = parser.parse_args()
    tasks = [(way, *one) for way in ("turned", "forward") for one in MAPS]
    if args.small:
        tasks = [("forward", 2, 7, 32, 3, True), ("turned", 2, 7, 32, 3, True), ("forward", 2, 8, 32, 5, False)]
    if args.part is None:
        print(
            torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
            torch.__version__,
            time.strftime("%F"),
            flush=True,
        )
        with tempfile.NamedTemporaryFile() as lock:
            words = [*sys.argv[1:], "--lock", lock.name]
            parts = range(min(args.at_once, len(tasks)))
            made = [subprocess.Popen([sys.executable, __file__, *words, "--part", str(part)]) for part in parts]
            sys.exit(max(process.wait() for process in made))
    with open(args.lock) as lock:
        for task in tasks[args.part :: min(args.at_once, len(tasks))]:
            time_task(lock, *task)


def time_task(lock: Any, way: str, images: int, side: int, channels: int, size: int, gelu: bool) -> None:
    """Check and time one direction on one map."""
    torch.manual_seed(0)
    shape = (images, side * side, channels)
    x, grad = (torch.randn(shape, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    weight, bias = torch.randn(channels, 1, size, size, device=DEVICE) / size, torch.randn(channels, device=DEVICE)
    weight, bias = weight.to(torch.bfloat16), bias.to(torch.bfloat16)
    cells, residual, turned = cells_of(weight), size == 3, way == "turned"
    expected = reference(x, grad, weight, bias, side, residual=residual, gelu=gelu)
    given = (grad, cells, None) if turned else (x, cells, bias)
    how = (side, side, turned, residual, gelu and not turned, True)
    found: dict[str, float] = {}
    worst = 0.0
    for tiles in candidates(side, size):

        def call(tiles: Tiles = tiles) -> tuple[Tensor, Tensor]:
            return run_convolve(lambda kernel: kernel, *given, *how, tiles)

        got = [one for one in call() if one.numel()]
        worst = max(worst, *(distance(a, b) for a, b in zip(got, expected[2:] if turned else expected, strict=False)))
        found["/".join(map(str, tiles))] = clock(lock, call)
    given_map = given[0].unflatten(1, (side, side))
    theirs = clock(lock, lambda: convolve(given_map, weight))
    best = sorted(found, key=lambda name: found[name])
    told = ", ".join(f"{name} {found[name]:.3f}" for name in best[:6])
    told += f", ..., {best[-1]} {found[best[-1]]:.3f}"
    what = f"{way:8} {images} x {side} x {side} x {channels}, {size} x {size}{', GELU' if gelu else ''}"
    print(f"{what}: library {theirs:.3f}; rows/columns/channels/warps {told}; error {worst:.1e}", flush=True)


def candidates(side: int, size: int) -> list[Tiles]:
    """Return tiles to try: a thread holds two, four or eight channels of one column."""
    rows = depthwise_triton._rows(side)
    some = [8] if side <= 8 else [8, 16] if side % 8 == 0 else [4, 8, 32] if side == 28 else [2, 16]
    held = (2, 4) if size == 5 else (4, 8)
    found = []
    for columns in some:
        for channels in (32, 64, 128):
            for each in held:
                warps = columns * channels // (32 * each)
                if 1 <= warps <= 16 and (DEVICE == "cuda" or channels == 32):
                    found.append(Tiles(rows, columns, channels, warps))
    return found


def reference(x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor, side: int, **how: bool) -> tuple[Tensor, ...]:
    """Return sum, GELU and the gradient of the map, in float32."""
    x, weight, bias = x.float().requires_grad_(), weight.float(), bias.float()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        total = convolve(x.unflatten(1, (side, side)), weight, bias).flatten(1, 2)
        total = total + x if how["residual"] else total
        (of_x,) = torch.autograd.grad(total, x, grad.float())
    active = F.gelu(total) if how["gelu"] else total[:0]
    return total.detach(), active.detach(), of_x


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b).norm() / b.norm())


def clock(lock: Any, call: Callable[[], Any]) -> float:
    """Return the median milliseconds of a call, alone on the GPU."""
    if DEVICE == "cpu":
        begun = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begun)
    call()
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(16)]
        call()
        for mark in marks:
            mark.record()
            call()
        torch.cuda.synchronize()
        spans = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
    return spans[len(spans) // 2]


if __name__ == "__main__":
    main()
