"""Time attention among few tokens, and the bridges between a map and its slots, by our kernels and by products.

    python benchmarks/speed/slots.py            # about 60 s of an H200: processes that take turns
    python benchmarks/speed/slots.py --chosen   # no tiles but those that models get
    TRITON_INTERPRET=1 DEV=cpu python benchmarks/speed/slots.py --small    # a trial on the CPU

A figure is milliseconds of a forward and a backward pass in bfloat16, replayed as a CUDA graph: by the products that
the compiler is given otherwise, by PyTorch's fused attention (attention alone), and by the kernels alone with several
tiles (rows at a time / warps / stages of loading; for attention warps). Slots have unit length, which products see to
once more. In parentheses distances from float32, of the answer and of the worst of the gradients.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.kernels.modules.attention import attend_by_products
from saccade.kernels.modules.slots import cluster_by_attention, cluster_by_positions, fusable
from saccade.kernels.ops import attention, cluster

DEVICE = os.environ.get("DEV", "cuda")
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # which the interpreter does not multiply in
CASES: list[tuple[str, int, int, int, int]] = [
    ("attention", 512, 16, 2, 32),  # images, tokens, heads, channels of a head
    ("attention", 512, 16, 8, 32),
    ("attention", 512, 64, 4, 32),
    ("attention", 1024, 16, 3, 32),
    ("attention", 1024, 64, 6, 32),
    ("attention", 256, 64, 8, 32),
    ("attention", 512, 64, 3, 64),
    ("attention", 512, 65, 3, 64),
    ("bridge", 512, 256, 16, 64),  # images, positions, slots, channels
    ("bridge", 512, 64, 16, 128),
    ("bridge", 1024, 256, 16, 96),
    ("bridge", 1024, 64, 16, 192),
    ("bridge", 256, 196, 64, 256),
    ("bridge", 256, 784, 64, 128),
    ("bridge", 256, 3136, 64, 64),
    ("bridge", 256, 3136, 64, 96),
    ("bridge", 256, 784, 64, 192),
]
SMALL = [("attention", 2, 9, 2, 16), ("bridge", 2, 40, 9, 24)]
Pass = Callable[[], tuple[Tensor, ...]]  # answer and gradients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny maps, to try the script")
    parser.add_argument("--chosen", action="store_true", help="no tiles but those that a model gets")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = SMALL if args.small else CASES
    if args.part is None:
        name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
        print(name, torch.__version__, time.strftime("%F"), flush=True)
        with tempfile.NamedTemporaryFile() as lock:
            words = [sys.executable, __file__, *sys.argv[1:], "--lock", lock.name, "--part"]
            environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            made = [subprocess.Popen([*words, str(part)], env=environment) for part in range(len(cases))]
            sys.exit(max(process.wait() for process in made))
    with open(args.lock) as lock:
        time_case(lock, *cases[args.part], chosen=args.chosen)


def time_case(lock: Any, kind: str, images: int, *sizes: int, chosen: bool) -> None:
    """Check and time one shape by all forms."""
    torch.manual_seed(0)
    forms, tiles, given, gradient = (of_attention if kind == "attention" else of_bridge)(images, *sizes)
    exact = passed(forms["exact"], [x.float() for x in given], gradient.float())()
    told = []
    for name in forms if DEVICE == "cuda" else ["products"]:
        if name != "exact":
            call = passed(torch.compile(forms[name]) if DEVICE == "cuda" else forms[name], given, gradient)
            got = call()  # whose first gradient may be one of slots that were not normalised yet
            told.append(f"{name} {clock(lock, call):.4f} ({distances([got[0], got[-1]], [exact[0], exact[-1]])})")
    for name, call in tiles.items():
        if not chosen or name.endswith("chosen"):
            try:
                told.append(f"{name} {clock(lock, call):.4f} ({distances(call(), exact)})")
            except Exception as error:  # too many registers, too much shared memory
                told.append(f"{name} {type(error).__name__}")
    print(f"{kind} {' x '.join(map(str, (images, *sizes)))}: {', '.join(told)}", flush=True)


def of_attention(images: int, tokens: int, heads: int, width: int) -> Any:
    """Return forms of attention, the kernel's tiles, what they are given and the gradient of their answer."""
    given = torch.randn(images, tokens, 3 * heads * width, device=DEVICE).to(HALF)
    gradient = torch.randn(images, tokens, heads * width, device=DEVICE).to(HALF)

    def by(attend: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        def run(qkv: Tensor) -> Tensor:
            q, k, v = qkv.unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
            return attend(q, k, v).transpose(1, 2).flatten(2)

        return run

    products = by(attend_by_products)
    forms = {"exact": products, "products": products, "fused": by(F.scaled_dot_product_attention)}
    usual, options = attention._constants(given, heads)

    def kernels(warps: int) -> Pass:
        def run() -> tuple[Tensor, ...]:
            attention._constants = lambda *_: (usual, {"num_warps": warps})
            answer = attention.attend(given, heads)
            return answer, attention.attend_back(gradient, given, heads, False)[0]

        return run

    tiles = {_told(warps, chosen=warps == options["num_warps"]): kernels(warps) for warps in (1, 2, 4, 8)}
    return forms, tiles, [given], gradient


def of_bridge(images: int, positions: int, slots: int, channels: int) -> Any:
    """Return forms of clustering and dispatching what was clustered, and the rest as above."""
    query = F.normalize(torch.randn(images, slots, channels, device=DEVICE), dim=-1).to(HALF)
    features = torch.randn(images, positions, channels, device=DEVICE).to(HALF)
    gradient = torch.randn(images, positions, channels, device=DEVICE).to(HALF)

    def exact(query: Tensor, features: Tensor) -> Tensor:
        logits = F.normalize(features, dim=-1) @ query.mT
        return logits.softmax(2) @ (logits.softmax(1).mT @ features)

    scale = query.new_ones(()).float()

    def products(query: Tensor, features: Tensor) -> Tensor:
        form = cluster_by_attention if fusable(features) else cluster_by_positions
        clustered, dispatch = form(query, features, scale)
        return dispatch(clustered)

    usual, options = cluster._constants(query, features)

    def kernels(rows: int, warps: int, stages: int) -> Pass:
        def run() -> tuple[Tensor, ...]:
            how = {"num_warps": warps, "num_stages": stages}
            cluster._constants = lambda *_: ((*usual[:3], rows, *usual[4:]), how)
            clustered, logits, sums = cluster.gather(query, features, scale)
            answer = cluster.scatter(logits, clustered)
            of_logits, of_slots, _ = cluster.scatter_back(gradient, logits, clustered, False)
            given = (of_slots, of_logits, query, features, scale, clustered, logits, sums)
            return answer, *cluster.gather_back(*given)[:2]

        return run

    chosen = usual[3], options["num_warps"], options["num_stages"]
    others = [(rows, warps, stages) for rows in (16, 32, 64) for warps in (4, 8) for stages in (1, 2, 3)]
    tiles = {_told(*one, chosen=one == chosen): kernels(*one) for one in dict.fromkeys([chosen, *others])}
    return {"exact": exact, "products": products}, tiles, [query, features], gradient


def _told(*tile: int, chosen: bool) -> str:
    return "/".join(map(str, tile)) + (" chosen" if chosen else "")


def passed(run: Callable[..., Tensor], given: Sequence[Tensor], gradient: Tensor) -> Pass:
    """Return a forward and a backward pass."""
    leaves = [x.detach().requires_grad_() for x in given]

    def call() -> tuple[Tensor, ...]:
        answer = run(*leaves)
        return answer.detach(), *torch.autograd.grad(answer, leaves, gradient)

    return call


def distances(got: Sequence[Tensor], exact: Sequence[Tensor]) -> str:
    """Return the distance of the answer and the largest of a gradient's."""
    far = [float((a.float() - b).norm() / b.norm()) for a, b in zip(got, exact, strict=True)]
    return f"{far[0]:.4f}, {max(far[1:]):.4f}"


def clock(lock: Any, call: Pass) -> float:
    """Return the median milliseconds of a call, twenty of them replayed as a graph, alone on the GPU."""
    call()
    if DEVICE == "cpu":
        return 0.0
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                call()
        spans = []
        for _ in range(5):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            graph.replay()
            ended.record()
            torch.cuda.synchronize()
            spans.append(begun.elapsed_time(ended) / 20)
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
    return sorted(spans)[2]


if __name__ == "__main__":
    main()
