"""Hold models with and without kernels against float64: logits, gradients, graph breaks, and the bits after `undo`.

    python benchmarks/speed/kernels_exact.py                   # GLNet, NomMer, SoT and a ViT; ten minutes of an H200
    python benchmarks/speed/kernels_exact.py --model glnet_stl --batch-size 8
    DEV=cpu python benchmarks/speed/kernels_exact.py --model glnet_nano --size 32 --backend aot_eager

Each model runs plain in float64, then in float32 and in bfloat16 by autocast, with kernels off and auto: eagerly, and
compiled by blocks as `saccade train` does. A distance is ||got - exact|| / ||exact||, of the logits and of all
gradients in one vector; `worst` is the parameter whose gradient is farthest, by the same measure (those that hold less
than a millionth of the whole gradient are left out). Biases and gains are drawn, lest their gradients be nothing but
rounding.
"""

import argparse
import copy
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import timm
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.utils import counters

import saccade
from saccade.training.engine import compile_parts, compiler_settings

DEVICE = os.environ.get("DEV", "cuda")
MODELS = ("glnet_stl", "glnet_4g", "nommer_tiny", "sot_small", "vit_tiny_patch16_224")
Found = tuple[Tensor, dict[str, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"may be given several times; default {', '.join(MODELS)}")
    parser.add_argument("--size", type=int, default=224, help="image side")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--fused", action="store_true", help="as Inductor does by default: row and column sums in one")
    parser.add_argument("--mode", action="append", choices=("train", "infer"))
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch._inductor.config.fallback_random = True  # NomMer's noise, the same wherever it is drawn
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in training
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    print(f"{where}, torch {torch.__version__}, timm {timm.__version__}, {time.strftime('%F')}")
    print("| model | mode | how | precision | kernels | logits | gradients | worst | |")
    print("| --- | --- | --- | --- | --- | --: | --: | --- | --- |", flush=True)
    for name in args.model or MODELS:
        for mode in args.mode or ("train", "infer"):
            with nullcontext() if args.fused else compiler_settings():
                for row in rows(name, mode, args):
                    print(f"| {name} | {mode} | {' | '.join(row)} |", flush=True)


def rows(name: str, mode: str, args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yield what one model gives in one mode, a row for each way to run it."""
    model, images, labels = create(name, args)
    model.train(mode == "train")
    exact = run(model.double(), images.double(), labels, mode, half=False)
    model.float()
    for how, half, use in itertools.product(("eager", "compiled"), (False, True), ("off", "auto")):
        asked = copy.deepcopy(model)
        before = run(asked, images, labels, mode, half=half)[0] if how == "eager" else None
        handle = saccade.accelerate(asked, mode, use)
        names = ", ".join((*handle.names, *handle.workarounds)) or "none"
        counters.clear()
        torch._dynamo.reset()
        try:
            found = run(asked, images, labels, mode, half=half, backend=args.backend if how == "compiled" else None)
            told = distances(found, exact)
        except Exception as error:  # a row that says so is worth more than the end of the table
            told = (f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90]}", "", "")
        breaks = f"{sum(counters['graph_break'].values())} breaks" if how == "compiled" else ""
        handle.undo()
        if before is not None:
            same = torch.equal(before, run(asked, images, labels, mode, half=half)[0])
            breaks = "the same after undo" if same else "NOT THE SAME AFTER UNDO"
        yield (how, "bfloat16" if half else "float32", f"{use}: {names}", *told, breaks)


def create(name: str, args: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model with drawn biases and gains, images and labels."""
    torch.manual_seed(0)
    more = {"img_size": args.size} if args.size != 224 else {}
    model = timm.create_model(name, num_classes=10, drop_path_rate=0, **more).to(DEVICE)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # draws differ in float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(args.batch_size, 3, args.size, args.size, device=DEVICE)
    return model, images, torch.randint(10, (args.batch_size,), device=DEVICE)


def run(
    model: nn.Module, images: Tensor, labels: Tensor, mode: str, *, half: bool, backend: str | None = None
) -> Found:
    """Return logits and, in training, gradients."""
    model.zero_grad(set_to_none=True)
    called: Any = model
    if backend is not None:
        called = compile_parts(model, backend=backend)
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    torch.manual_seed(1)
    with torch.set_grad_enabled(mode == "train"), torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        out = called(images)
    if mode == "train":
        nn.functional.cross_entropy(out if out.dtype == torch.float64 else out.float(), labels).backward()
    with torch.no_grad():
        for buffer, value in kept:
            buffer.copy_(value)
    return out.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distances(found: Found, exact: Found) -> tuple[str, str, str]:
    """Return how far logits, all gradients and the worst gradient are from the exact ones."""
    logits, gradients = found
    told = f"{distance(logits, exact[0]):.1e}"
    if not exact[1]:
        return told, "", ""
    if gradients.keys() != exact[1].keys():
        return told, "gradients of other parameters", ", ".join(sorted(gradients.keys() ^ exact[1].keys())[:3])
    whole = torch.cat([want.flatten() for want in exact[1].values()])
    got = torch.cat([gradients[name].flatten() for name in exact[1]])
    large = {name: want for name, want in exact[1].items() if want.norm() > 1e-6 * whole.norm()}
    worst = max(large, key=lambda name: distance(gradients[name], large[name]))
    return told, f"{distance(got, whole):.1e}", f"{distance(gradients[worst], large[worst]):.1e} {worst}"


def distance(got: Tensor, want: Tensor) -> float:
    """Return how far a tensor is from another, in its length."""
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))


if __name__ == "__main__":
    main()
