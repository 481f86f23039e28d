"""Time the GPU's kernels that a model is made of, one by one, beside other forms of the same.

    python benchmarks/speed/kernels.py                  # about 20 s of an H200
    DEV=cpu python benchmarks/speed/kernels.py --small  # a trial on the CPU

Pooling to slots with its gradient; GELU behind a product; attention with one wide head by every backend. A figure is
the median of many calls in milliseconds; inputs are random and larger than the cache, but for the smallest maps.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.kernels.modules import slots as ways

DEVICE = os.environ.get("DEV", "cuda")
DTYPE = torch.bfloat16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script")
    args = parser.parse_args()
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu", torch.__version__, time.strftime("%F"))
    batch = 2 if args.small else 256
    for side, width in ((56, 96), (28, 192), (14, 384)):
        time_map(batch, *((side // 4, width // 8) if args.small else (side, width)))


def time_map(batch: int, side: int, width: int) -> None:
    """Time what GLNet does with a map of one size."""
    x = torch.randn(batch, side * side, width, device=DEVICE, dtype=DTYPE, requires_grad=True)
    slots = torch.randn(batch, 64, width, device=DEVICE, dtype=DTYPE)
    forms: dict[str, Callable[[], Tensor]] = {
        "adaptive": lambda: F.adaptive_avg_pool2d(x.unflatten(1, (side, side)).permute(0, 3, 1, 2), 8),
        "product": lambda: ways.average_by_product(x, (side, side), 8),
    }
    if side % 8 == 0:
        forms["means"] = lambda: ways.average_cells(x, (side, side), 8)
    told = {name: clock(lambda form=form: torch.autograd.grad(form().sum(), x)) for name, form in forms.items()}
    print(f"pooling {side} x {side} x {width} to 64 slots and back:", shown(told), flush=True)
    with torch.no_grad():
        told = {}
        for name, backend in BACKENDS.items():
            try:
                with sdpa_kernel(backend):
                    told[f"to slots, {name}"] = clock(lambda: attend(slots, x, x))
                    told[f"from slots, {name}"] = clock(lambda: attend(x, slots, slots))
            except RuntimeError:
                told[name] = math.nan
        scale = torch.tensor(1.0, device=DEVICE)
        told["by positions, both"] = clock(lambda: both(ways.cluster_by_positions, slots, x, scale))
        told["fused, both"] = clock(lambda: both(ways.cluster_by_attention, slots, x, scale))
    print(f"attention {side} x {side} x {width}:", shown(told), flush=True)
    rows, hidden = batch * side * side, 4 * width
    a, w = (
        torch.randn(rows, width, device=DEVICE, dtype=DTYPE),
        torch.randn(hidden, width, device=DEVICE, dtype=DTYPE),
    )
    b = torch.randn(hidden, device=DEVICE, dtype=DTYPE)
    told = {
        "product": clock(lambda: F.linear(a, w, b)),
        "product, GELU": clock(lambda: F.gelu(F.linear(a, w, b))),
        "one call, tanh": clock(lambda: torch._addmm_activation(b, a, w.t(), use_gelu=True)),
    }
    if side == 56:  # trying products out takes a while
        fused = torch.compile(lambda a, w, b: F.gelu(F.linear(a, w, b)), options={"max_autotune_gemm": True})
        told["compiled, tuned"] = clock(lambda: fused(a, w, b))
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


def shown(told: dict[str, float]) -> str:
    """Return names and milliseconds."""
    return ", ".join(f"{name} {value:.3f}" for name, value in told.items())


if __name__ == "__main__":
    main()
