"""Compare gradients of compiled half precision with those of eager half precision, both against float32.

    python benchmarks/speed/gradients.py glnet_4g --depths 1,1,2,1 --batch-size 128       # about 100 s of an H200
    python benchmarks/speed/gradients.py glnet_nano --size 32 --batch-size 128
    DEV=cpu python benchmarks/speed/gradients.py glnet_nano --size 32 --batch-size 4      # a trial of the script

A distance is that of two gradients of one parameter over the length of float32's. Listed are the parameters for which
the compiled one is worst beside the eager one, which runs before it in the same process: what a library keeps from one
to the other is part of the trial. Biases and gains are drawn, lest their gradients be nothing but rounding.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

import saccade  # noqa: F401

DEVICE = os.environ.get("DEV", "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", help="blocks of each stage, with commas between")
    parser.add_argument("--size", type=int, default=224, help="image side")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    more = {"depths": tuple(map(int, args.depths.split(",")))} if args.depths else {}
    model = timm.create_model(args.model, num_classes=10, **more).to(DEVICE).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(args.batch_size, 3, args.size, args.size, device=DEVICE)
    labels = torch.randint(10, (args.batch_size,), device=DEVICE)

    def gradients(run: Callable[[Tensor], Tensor], *, half: bool) -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            out = run(images).float()
        nn.functional.cross_entropy(out, labels).backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return out.detach(), found

    logits, exact = gradients(model, half=False)
    plain, eager = gradients(model, half=True)
    compiled = torch.compile(model) if DEVICE == "cuda" else model
    mine, found = gradients(compiled, half=True)
    again, repeated = gradients(compiled, half=True)
    same = torch.equal(mine, again) and all(torch.equal(found[name], repeated[name]) for name in found)
    print(machine(), " ".join(sys.argv[1:]))
    print(f"logits: eager {distance(plain, logits):.4f}, compiled {distance(mine, logits):.4f}; again the same: {same}")
    rows: list[tuple[float, float, float, str]] = []
    for name, want in exact.items():
        theirs, ours = distance(eager[name], want), distance(found[name], want)
        rows.append((ours / max(theirs, 1e-3), ours, theirs, name))
    rows.sort(reverse=True)
    for ratio, ours, theirs, name in rows[:8]:
        print(f"{ratio:7.2f}  compiled {ours:.4f}  eager {theirs:.4f}  {name}")
    print(f"{statistics.median(row[0] for row in rows):7.2f}  the median of {len(rows)} parameters")


def distance(got: Tensor, want: Tensor) -> float:
    """Return how far a tensor is from another, in its length."""
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


def machine() -> str:
    """Return what it ran on."""
    name: Any = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    return f"{name}, torch {torch.__version__}, {time.strftime('%F')}:"


if __name__ == "__main__":
    main()
