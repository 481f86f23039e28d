"""Time ways to train several seeds of one small model on one GPU: in turn, side by side, or stacked.

    python benchmarks/speed/stacked_seeds.py --seeds 4 --batch-size 128

"in turn" trains one seed after another; "side by side" gives each seed a process; "stacked" holds the parameters of all
seeds in one set of tensors and trains them by one `torch.func.vmap` of the step. Every step is forward, backward and
AdamW in bfloat16, replayed as a CUDA graph; images are random and stay on the device. Seconds are those in which all
seeds have taken all steps, without starting, compiling and capturing. Processes share a GPU in turns unless NVIDIA's
Multi-Process Service is running (`nvidia-cuda-mps-control -d`), which lets their kernels overlap.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import saccade
from saccade.training.engine import Replay, compile_parts

MODEL: dict[str, Any] = {"img_size": 32, "patch_size": 4, "num_classes": 100, "embed_dim": 192, "depth": 6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compile", action="store_true", help="compile the blocks, or the stacked step")
    args = parser.parse_args()
    size = sum(p.numel() for p in build(0).parameters())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, ViT of {size / 1e6:.1f} M parameters, 32 px")
    print(f"batch {args.batch_size}, {args.seeds} seeds, {args.steps} steps{', compiled' if args.compile else ''}\n")
    print("| way | seconds | images/s of all seeds | against in turn |\n| --- | --: | --: | --: |")
    base = None
    for name, way in {"in turn": in_turn, "side by side": side_by_side, "stacked": stacked}.items():
        try:
            seconds = way(args)
        except (RuntimeError, ValueError, TypeError) as error:
            print(f"| {name} | failed: {type(error).__name__}: {str(error).splitlines()[0][:160]} | | |", flush=True)
            continue
        base = base or seconds
        images = args.seeds * args.steps * args.batch_size / seconds
        print(f"| {name} | {seconds:.2f} | {images:,.0f} | {base / seconds:.2f}x |", flush=True)


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model("vit_tiny_patch16_224", **MODEL)


def batch(size: int, *lead: int) -> list[Tensor]:
    """Return random images and labels on the device."""
    return [torch.randn(*lead, size, 3, 32, 32, device="cuda"), torch.randint(100, (*lead, size), device="cuda")]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=torch.tensor(1e-3, device="cuda"), fused=True, capturable=True)


def single(args: argparse.Namespace, seed: int) -> Callable[[], None]:
    """Return a step of one seed."""
    model = build(seed).cuda().train()
    if args.compile:
        saccade.accelerate(model)
        compile_parts(model)
    optimizer = adamw(model.parameters())

    def step(images: Tensor, labels: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return replayed(step, batch(args.batch_size))


def together(args: argparse.Namespace) -> Callable[[], None]:
    """Return a step of all seeds, their parameters stacked."""
    models = [build(seed).cuda().train() for seed in range(args.seeds)]
    parameters, buffers = torch.func.stack_module_state(models)
    skeleton = models[0]
    optimizer = adamw(parameters.values())

    def loss_of(own: dict[str, Tensor], kept: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        # Everything in bfloat16, since layer norms under autocast have no gradient inside of vmap.
        low = {name: value.bfloat16() for name, value in own.items()}
        logits = torch.func.functional_call(skeleton, (low, kept), (images.bfloat16(),))
        return F.cross_entropy(logits.float(), labels)

    def losses(own: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        # A sum: its gradient towards each seed's parameters is that of the seed's own loss.
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels' backward passes refuse stacked tensors
            return torch.func.vmap(loss_of, randomness="different")(own, buffers, images, labels).sum()

    called = torch.compile(losses) if args.compile else losses

    def step(images: Tensor, labels: Tensor) -> None:
        called(parameters, images, labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return replayed(step, batch(args.batch_size, args.seeds))


def replayed(step: Callable[..., None], inputs: list[Tensor]) -> Callable[[], None]:
    replay = Replay(step)
    for _ in range(8):
        replay(inputs)
    torch.cuda.synchronize()
    return lambda: replay(inputs)


def clock(step: Callable[[], None], steps: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def in_turn(args: argparse.Namespace) -> float:
    return args.seeds * clock(single(args, 0), args.steps)


def stacked(args: argparse.Namespace) -> float:
    return clock(together(args), args.steps)


def side_by_side(args: argparse.Namespace) -> float:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(args.seeds + 1), context.Barrier(args.seeds + 1)
    workers = [context.Process(target=work, args=(args, seed, ready, done)) for seed in range(args.seeds)]
    for worker in workers:
        worker.start()
    ready.wait(timeout=300)
    begun = time.perf_counter()
    done.wait(timeout=300)
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    return seconds


def work(args: argparse.Namespace, seed: int, ready: Barrier, done: Barrier) -> None:
    step = single(args, seed)
    ready.wait(timeout=300)
    clock(step, args.steps)
    done.wait(timeout=300)


if __name__ == "__main__":
    main()
