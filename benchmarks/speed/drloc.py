"""Time a training step with and without relative localization and print what the loss costs.

    python benchmarks/speed/drloc.py                                          # on this machine's CPU
    python benchmarks/speed/drloc.py --device cuda --precision bfloat16 --batch-size 128 --compile
    python benchmarks/speed/drloc.py --model cvt_13 --grids blocks --pairs 128

A step is forward, backward and AdamW. Three arms take turns in every round, so that they meet the same machine: the
plain classifier, the same again, and the one that localizes. Times are medians over rounds. `ratio` is the median of
the rounds' ratios to the plain step and `spread` their (largest - smallest); `noise` is what the second plain arm seems
to cost, so a cost below it is not to be told from none.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import timm
import torch

import saccade.models.glnet  # noqa: F401, registers it with timm
from saccade.evaluation.speed import PRECISIONS, Setting, create_for, repeats_in, seconds_of
from saccade.tasks import Classify, RelativeLocalization, Task

MODELS = ["swin_tiny_patch4_window7_224", "vit_small_patch16_224", "glnet_stl"]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--grids", default="last", choices=["last", "stages", "blocks"])
    parser.add_argument("--compile", action="store_true", help="time compiled tasks beside eager ones")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one arm's turn")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    print(machine(args.device))
    print("\n| model | engine | batch | step | with DRLoc | ratio | spread | noise | cost |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: | --: |")
    for name in args.model or MODELS:
        for compiled in [False, True] if args.compile else [False]:
            torch.compiler.reset()
            setting = Setting(
                mode="training",
                compiled=compiled,
                batch_size=args.batch_size,
                img_size=args.img_size,
                device=args.device,
                precision=args.precision,
                rounds=args.rounds,
                seconds=args.seconds,
            )
            print(row(name, setting, pairs=args.pairs, grids=args.grids), flush=True)


def row(name: str, setting: Setting, *, pairs: int, grids: str) -> str:
    """Return a line of the table."""
    steps = {
        "plain": make_step(Classify(create_for(name, setting.img_size)), setting),
        "again": make_step(Classify(create_for(name, setting.img_size)), setting),
        "drloc": make_step(RelativeLocalization(create_for(name, setting.img_size), pairs=pairs, grids=grids), setting),
    }
    for step in steps.values():  # compile, allocate, warm up
        for _ in range(3):
            step()
    count = repeats_in(steps["plain"], setting)
    times: dict[str, list[float]] = {arm: [] for arm in steps}
    arms = list(steps)
    for number in range(setting.rounds):
        for arm in arms[number % 3 :] + arms[: number % 3]:  # no arm always comes first
            times[arm].append(seconds_of(steps[arm], count, setting.device) / count)
    ratios = {arm: [t / p for t, p in zip(times[arm], times["plain"], strict=True)] for arm in arms}
    middle = {arm: statistics.median(values) for arm, values in ratios.items()}
    plain, drloc = (1000 * statistics.median(times[arm]) for arm in ("plain", "drloc"))
    spread = max(ratios["drloc"]) - min(ratios["drloc"])
    return (
        f"| {name} | {setting.precision}{' compiled' if setting.compiled else ''} | {setting.batch_size} "
        f"| {plain:.2f} ms | {drloc:.2f} ms | {middle['drloc']:.4f} | {spread:.4f} "
        f"| {middle['again'] - 1:+.2%} | {middle['drloc'] - 1:+.2%} |"
    )


def make_step(task: Task, setting: Setting) -> Callable[[], None]:
    """Return a function that trains the task for one step on random images."""
    device = torch.device(setting.device)
    task = task.to(device).train()
    images = torch.randn(setting.batch_size, 3, setting.img_size, setting.img_size, device=device)
    labels = torch.randint(1000, (setting.batch_size,), device=device)
    generator = torch.Generator(device).manual_seed(0)
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-4)
    run = torch.compile(task, fullgraph=True) if setting.compiled else task
    dtype = PRECISIONS[setting.precision]

    def step() -> None:
        drawn = task.draw(setting.batch_size, device=device, generator=generator)
        with nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype):
            loss = run(images, labels, **drawn)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def machine(device: str) -> str:
    threads = f"CPU, {torch.get_num_threads()} threads of {os.cpu_count()}"
    chip = torch.cuda.get_device_name() if device.startswith("cuda") else threads
    versions = f"python {platform.python_version()}, torch {torch.__version__}, timm {timm.__version__}"
    command = f"Command: python benchmarks/speed/drloc.py {' '.join(sys.argv[1:])}"
    return f"{chip}; {versions}; {time.strftime('%Y-%m-%d')}\n{command}"


if __name__ == "__main__":
    main()
