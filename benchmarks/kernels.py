"""Time the GPU's kernels that a model is made of, one by one, and choose the best for each shape.

    python benchmarks/kernels.py --out chosen.json                 # about 80 s of an H200; the file goes to table.py
    DEV=cpu TRITON_INTERPRET=1 python benchmarks/kernels.py --out chosen.json --small    # a trial on the CPU

Depthwise convolutions (forward, gradient of the map, gradient of the kernel) by cuDNN and by our kernels with several
tiles; pooling to slots with its gradient; GELU behind a product; attention with one wide head by every backend. Every
kernel of ours is compared with the plain form in float32 first: an error over 1e-2 of the norm is not timed. A figure
is the median of many calls; inputs are random and larger than the cache, but for the smallest maps. Other processes
compile all tiles side by side before, so that the time goes into timing.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.layers import cluster, depthwise_triton
from saccade.layers.depthwise_triton import Tiles

DEVICE = os.environ.get("DEV", "cuda")
DTYPE = torch.bfloat16
# B, H, W, C, side of the kernel: GLNet-STL's local branches, GLNet-4G's branches, positions and hidden maps, nano's.
SHAPES = [(256, 56, 56, 96, 5), (256, 28, 28, 192, 5), (256, 14, 14, 384, 5)]
SHAPES += [(256, 56, 56, 64, 5), (256, 28, 28, 128, 5), (256, 14, 14, 256, 5)]
SHAPES += [(256, 56, 56, 192, 3), (256, 28, 28, 384, 3), (256, 14, 14, 768, 3), (256, 7, 7, 1536, 3)]
SHAPES += [(512, 16, 16, 64, 5), (512, 8, 8, 128, 5)]
COMPARED = 16  # images that are compared in float32; as many that compiled code is the same for all
SMALL = [(1, 6, 5, 20, 5), (1, 5, 7, 12, 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the chosen tiles")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script")
    parser.add_argument("--seconds", type=float, default=100, help="after which no further tiles are tried")
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    begun = time.monotonic()
    if args.share is not None:
        compile_share(SMALL if args.small else SHAPES, args.share, args.jobs)
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--share"]
    compiling = [subprocess.Popen([*command, str(share)]) for share in range(args.jobs)]
    for process in compiling:
        process.wait()
    print(f"compiled after {time.monotonic() - begun:.0f} s")
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu", torch.__version__, time.strftime("%F"))
    others(small=args.small)
    best = [choose(shape, begun + args.seconds) for shape in (SMALL if args.small else SHAPES)]
    chosen: dict[tuple[int, int], dict[str, Any]] = {}
    for row in best:  # of several widths of a map at one size, the first in the list counts
        if row is not None:
            chosen.setdefault((row["size"], row["width"]), row)
    args.out.write_text(json.dumps(list(chosen.values()), indent=1))
    print(f"{len(chosen)} of {len(best)} shapes are faster with ours; {time.monotonic() - begun:.0f} s")


def steps_of(weight: Tensor, bias: Tensor) -> list[Callable[[Tensor, Tensor, Tiles], Tensor]]:
    """Return our forward, gradient of the map and gradient of the kernel, of a map, the output's gradient and tiles."""
    size = weight.shape[-1]
    return [
        lambda x, _, tiles: depthwise_triton.run_convolve(x, weight, bias, tiles),
        lambda _, grad, tiles: depthwise_triton.run_convolve(grad, weight, None, tiles, turned=True),
        lambda x, grad, tiles: depthwise_triton.run_kernel_gradient(x, grad, size, tiles)[0],
    ]


def inputs_of(shape: tuple[int, int, int, int, int], batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a map, a gradient, kernels and biases."""
    _, height, width, channels, size = shape
    x, grad = (torch.randn(batch, height, width, channels, device=DEVICE, dtype=DTYPE) for _ in range(2))
    weight = torch.randn(channels, 1, size, size, device=DEVICE, dtype=DTYPE) / size
    return x, grad, weight, torch.randn(channels, device=DEVICE, dtype=DTYPE)


def compile_share(shapes: list[tuple[int, int, int, int, int]], share: int, of: int) -> None:
    """Compile every so manieth kernel into the cache that all processes read."""
    jobs = [(shape, step, tiles) for shape in shapes for step in range(3) for tiles in candidates(shape, step)]
    for shape, step, tiles in jobs[share::of]:
        x, grad, weight, bias = inputs_of(shape, min(shape[0], COMPARED))
        try:
            steps_of(weight, bias)[step](x, grad, tiles)
        except Exception as problem:  # it will be told where it is timed
            print(f"  {type(problem).__name__}: {shape}, {step}, {tiles}")


def choose(shape: tuple[int, int, int, int, int], until: float) -> dict[str, Any] | None:
    """Time a shape; return the tiles if all three steps together take less time than cuDNN's."""
    batch, _, width, channels, size = shape
    x, grad, weight, bias = inputs_of(shape, batch)
    image, slope = x.permute(0, 3, 1, 2), grad.permute(0, 3, 1, 2)
    last = weight.to(memory_format=torch.channels_last)
    options = ([channels], [1, 1], [size // 2] * 2, [1, 1], False, [0, 0], channels)
    backward = torch.ops.aten.convolution_backward
    theirs = [
        clock(lambda: F.conv2d(image, last, bias, padding=size // 2, groups=channels)),
        clock(lambda: backward(slope, image, last, *options, [True, False, False])),
        clock(lambda: backward(slope, image, last, *options, [False, True, True])),
    ]
    few = x[:COMPARED], grad[:COMPARED]
    want = [
        convolved(few[0].float(), weight.float(), bias.float()),
        convolved(few[1].float(), weight.float().flip(2, 3), None),
        torch.nn.grad.conv2d_weight(
            few[0].float().permute(0, 3, 1, 2),
            weight.shape,
            few[1].float().permute(0, 3, 1, 2),
            padding=size // 2,
            groups=channels,
        ),
    ]
    found: list[tuple[float, Tiles | None]] = []
    for index, form in enumerate(steps_of(weight, bias)):
        tried: list[tuple[float, Tiles]] = []
        for tiles in candidates(shape, index):
            if time.monotonic() > until and tried:
                break
            try:
                error = relative(form(*few, tiles), want[index])
                if error > 1e-2:
                    print(f"  WRONG by {error:.1e}: {shape}, step {index}, {tiles}")
                    continue
                tried.append((clock(lambda: form(x, grad, tiles)), tiles))  # noqa: B023 called at once
            except Exception as problem:  # too many registers, or whatever the compiler finds
                print(f"  {type(problem).__name__}: {str(problem)[:90]}: {tiles}")
        found.append(min(tried, default=(math.inf, None), key=lambda pair: pair[0]))
    floor = 2e3 * x.numel() * x.element_size() / 4.3e12
    steps = ("forward", "map", "kernel")
    words = [f"{step} {a:.3f} -> {b:.3f}" for step, a, (b, _) in zip(steps, theirs, found, strict=True)]
    print(f"{shape}: floor {floor:.3f} ms; " + "; ".join(words), [tiles for _, tiles in found], flush=True)
    if any(tiles is None for _, tiles in found) or sum(theirs) <= sum(spent for spent, _ in found):
        return None
    tiles = {step: [t.rows, t.columns, t.channels, t.warps] for step, (_, t) in zip(steps, found, strict=True) if t}
    return {"size": size, "width": width, **tiles, "theirs": theirs, "ours": [spent for spent, _ in found]}


def candidates(shape: tuple[int, int, int, int, int], step: int) -> list[Tiles]:
    """Return tiles worth a try: those that compile for sm_90 without spilled registers."""
    _, height, width, channels, _ = shape
    if step == 2:
        cuts = [(64, 4), (64, 2), (32, 1), (32, 2)]
        return [Tiles(rows, 1, wide, warps) for rows in (28, 8) for wide, warps in cuts if wide <= max(32, channels)]
    cuts = [(16, 64, 4), (16, 32, 2), (16, 32, 4), (8, 64, 2), (8, 64, 4)]
    rows = [r for r in (28, 14, 7) if r <= height] or [height]
    cuts = [cut for cut in cuts if cut[0] < 2 * width and cut[1] <= max(32, channels)]
    return [Tiles(r, *cut) for r in rows[:2] for cut in cuts]


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve in the plain form."""
    out = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2, groups=len(weight))
    return out.permute(0, 2, 3, 1)


def others(*, small: bool) -> None:
    """Time what is no depthwise convolution."""
    batch = 2 if small else 256
    for side, width in ((56, 96), (28, 192), (14, 384)):
        side, width = (side // 4, width // 8) if small else (side, width)
        x = torch.randn(batch, side * side, width, device=DEVICE, dtype=DTYPE, requires_grad=True)
        slots = torch.randn(batch, 64, width, device=DEVICE, dtype=DTYPE)
        forms: dict[str, Callable[[], Tensor]] = {
            "adaptive": lambda: F.adaptive_avg_pool2d(x.unflatten(1, (side, side)).permute(0, 3, 1, 2), 8),  # noqa: B023
            "product": lambda: cluster.average_by_product(x, (side, side), 8),  # noqa: B023
        }
        if side % 8 == 0:
            forms["means"] = lambda: cluster.average_cells(x, (side, side), 8)  # noqa: B023
        told = {name: clock(lambda form=form: torch.autograd.grad(form().sum(), x)) for name, form in forms.items()}  # noqa: B023
        print(f"pooling {side} x {side} x {width} to 64 slots and back:", shown(told), flush=True)
        with torch.no_grad():
            told = {}
            for name, backend in BACKENDS.items():
                try:
                    with sdpa_kernel(backend):
                        told[f"to slots, {name}"] = clock(lambda: attend(slots, x, x))  # noqa: B023
                        told[f"from slots, {name}"] = clock(lambda: attend(x, slots, slots))  # noqa: B023
                except RuntimeError:
                    told[name] = math.nan
            scale = torch.tensor(1.0, device=DEVICE)
            told["direct, both"] = clock(lambda: both(cluster._soft_direct, slots, x, scale))  # noqa: B023
            told["fused, both"] = clock(lambda: both(cluster._soft_fused, slots, x, scale))  # noqa: B023
        print(f"attention {side} x {side} x {width}:", shown(told), flush=True)
        rows, hidden = batch * side * side, 4 * width
        a, w = (
            torch.randn(rows, width, device=DEVICE, dtype=DTYPE),
            torch.randn(hidden, width, device=DEVICE, dtype=DTYPE),
        )
        b = torch.randn(hidden, device=DEVICE, dtype=DTYPE)
        told = {
            "product": clock(lambda: F.linear(a, w, b)),  # noqa: B023
            "product, GELU": clock(lambda: F.gelu(F.linear(a, w, b))),  # noqa: B023
            "one call, tanh": clock(lambda: torch._addmm_activation(b, a, w.t(), use_gelu=True)),  # noqa: B023
        }
        if side == 56:  # trying products out takes a while
            fused = torch.compile(lambda a, w, b: F.gelu(F.linear(a, w, b)), options={"max_autotune_gemm": True})
            told["compiled, tuned"] = clock(lambda: fused(a, w, b))  # noqa: B023
        print(f"GELU behind {rows} x {width} x {hidden}:", shown(told), flush=True)


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with one head as wide as the channels."""
    return F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=0.1)


def both(form: Callable[..., Any], slots: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """Cluster and dispatch."""
    clustered, dispatch = form(slots, x, scale)
    return dispatch(clustered)


def clock(call: Callable[[], Any]) -> float:
    """Return the median milliseconds of a call."""
    if DEVICE != "cuda":
        call()
        begun = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begun)
    from triton.testing import do_bench

    return float(do_bench(call, warmup=8, rep=25, return_mode="median"))


def relative(got: Tensor, want: Tensor) -> float:
    """Return the norm of the difference over that of what is wanted; NaN counts as infinite."""
    error = float((got.float() - want).norm() / want.norm())
    return error if error == error else math.inf


def shown(told: dict[str, float]) -> str:
    """Return names and milliseconds."""
    return ", ".join(f"{name} {value:.3f}" for name, value in told.items())


if __name__ == "__main__":
    main()
