"""Time the depthwise kernels in Triton with several tiles beside the library's, and check what they compute.

    python benchmarks/speed/depthwise.py             # about 200 s of an H200: processes that take turns
    python benchmarks/speed/depthwise.py --chosen    # about 40 s: the tiles that models get
    TRITON_INTERPRET=1 DEV=cpu python benchmarks/speed/depthwise.py --small    # a trial on the CPU

A figure is the median of calls in milliseconds, bfloat16, on maps larger than the cache. "forward" has the sum with the
map (3 x 3) and GELU inside, "turned", the gradient of the map, the sum; "cells" are the gradients of kernels and bias,
as parts to be added up. "library" is cuDNN's convolution alone, or its gradient of the kernels.
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

from saccade.kernels.ops import depthwise
from saccade.kernels.ops.depthwise import Tiles, by_library, cells_of, gradient_by_library, tiles_of

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
    parser.add_argument("--chosen", action="store_true", help="no tiles but those that a model gets")
    parser.add_argument("--at-once", type=int, default=16, help="processes")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    args = parser.parse_args()
    tasks = [(way, *one) for way in ("turned", "forward", "cells") for one in MAPS]
    if args.small:
        tasks = [("forward", 2, 7, 32, 3, True), ("turned", 2, 7, 32, 3, True), ("cells", 2, 8, 32, 5, True)]
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
            time_task(lock, *task, chosen=args.chosen)


def time_task(
    lock: Any, way: str, images: int, side: int, channels: int, size: int, gelu: bool, *, chosen: bool = False
) -> None:
    """Check and time one direction on one map."""
    torch.manual_seed(0)
    shape = (images, side * side, channels)
    x, grad = (torch.randn(shape, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    weight, bias = torch.randn(channels, 1, size, size, device=DEVICE) / size, torch.randn(channels, device=DEVICE)
    weight, bias = weight.to(torch.bfloat16), bias.to(torch.bfloat16)
    cells, residual, turned = cells_of(weight, weight.dtype), size == 3, way == "turned"
    expected = reference(x, grad, weight, bias, side, residual=residual, gelu=gelu)[way]
    found: dict[str, float] = {}
    worst = 0.0
    for tiles in [tiles_of(side, side, size)] if chosen else candidates(side, size):

        def call(tiles: Tiles = tiles) -> tuple[Tensor, ...]:
            depthwise.tiles_of = lambda *_: tiles
            if way == "cells":
                return (depthwise.gradients(grad, x, side, side, size),)
            how = (side, side, turned, residual, gelu and not turned, True, turned and gelu)
            return depthwise.convolve(grad if turned else x, cells, None if turned else bias, *how)

        got = [one.sum(0) if one.dtype == torch.float32 else one for one in call() if one.numel()]
        worst = max(worst, *(distance(a, b) for a, b in zip(got, expected, strict=True)))
        found[_name(tiles)] = clock(lock, call)
    of_map, map = ((one.unflatten(1, (side, side))) for one in (grad, x))
    theirs = clock(
        lock, lambda: gradient_by_library(of_map, map, weight) if way == "cells" else by_library(map, weight)
    )
    own, *others = sorted(found, key=lambda name: (name != _name(tiles_of(side, side, size)), found[name]))
    told = f"{own} {found[own]:.3f} chosen" + "".join(f", {name} {found[name]:.3f}" for name in others[:6])
    what = f"{way:8} {images} x {side} x {side} x {channels}, {size} x {size}{', GELU' if gelu else ''}"
    print(f"{what}: library {theirs:.3f}; rows/groups/across/channels/warps {told}; error {worst:.1e}", flush=True)


def candidates(side: int, size: int) -> list[Tiles]:
    """Return tiles to try: a thread holds one to four channels of some columns."""
    groups = {56: [(4, 2), (2, 4), (8, 7)], 28: [(2, 2), (1, 4), (4, 7)], 14: [(1, 2), (2, 7), (1, 7)]}
    groups |= {7: [(4, 2), (2, 4), (1, 7)], 16: [(4, 2), (8, 2), (4, 4)], 8: [(4, 2), (2, 4), (1, 8)]}
    rows = {56: (28, 14), 28: (28, 14), 14: (14, 7), 16: (16, 8)}.get(side, (side,))
    found = [tiles_of(side, side, size)]
    for columns, across in groups[side]:
        for channels in (32, 64, 128):
            for each in (1, 2) if size == 5 else (2, 4):
                warps = columns * channels // (32 * each)
                if 1 <= warps <= 4 and across * each <= 16 and (DEVICE == "cuda" or channels == 32):
                    found += [Tiles(one, columns, across, channels, warps) for one in rows[: 1 + (across == 2)]]
    return list(dict.fromkeys(found))


def reference(x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor, side: int, **how: bool) -> dict[str, list[Tensor]]:
    """Return sum and GELU, the gradient of the map and its sum, and those of kernels and bias, in float32."""
    x, weight, bias = (one.float().requires_grad_() for one in (x, weight, bias))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        total = by_library(x.unflatten(1, (side, side)), weight, bias).flatten(1, 2)
        total = total + x if how["residual"] else total
        of_x, *gradients = torch.autograd.grad(total, (x, weight, bias), grad.float())
    forward, turned = [total.detach()], [of_x]
    if how["gelu"]:
        forward, turned = [*forward, F.gelu(total.detach())], [of_x, of_x.sum((0, 1))]
    return {"forward": forward, "turned": turned, "cells": [torch.cat([one.flatten() for one in gradients])]}


def _name(tiles: Tiles) -> str:
    return "/".join(map(str, tiles))


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
