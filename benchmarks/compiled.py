"""Compile backbones on a GPU, each in a fresh process, and time them: does every one compile, and how fast is it then?

    python benchmarks/compiled.py                                   # every registered backbone, inference and training
    python benchmarks/compiled.py --model glnet_stl --mode infer --kernels 20
    python benchmarks/compiled.py --model glnet_stl --pad           # as if the compiler found padding faster everywhere

Half precision by autocast, images channels-last. Processes compile side by side (`--jobs`), and take turns to be timed.
A model that does not compile within the time limit, or fails, is a row that says so; the exit status is then 1.
"""

import argparse
import fcntl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import timm
import torch
from torch import nn

import saccade  # noqa: F401 registers the backbones
from saccade.models import list_backbones
from saccade.training.engine import compile_parts

MODES = ("infer", "train", "blocks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times; all of saccade's by default")
    parser.add_argument("--mode", action="append", choices=MODES, help="blocks: training, compiled block by block")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds a process may take")
    parser.add_argument("--pad", action="store_true", help="let the compiler pad every product whose sides are uneven")
    parser.add_argument("--kernels", type=int, default=0, help="how many of the longest kernels to list")
    parser.add_argument("--alone", nargs=3, metavar=("MODEL", "MODE", "LOCK"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        time_one(args, *args.alone)
        return
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}, timm {timm.__version__}; {time.strftime('%F')}")
    print(f"Command: python benchmarks/compiled.py {' '.join(sys.argv[1:])}\n")
    print("| model | mode | images/s | ms a batch | first call | peak memory |\n| --- | --- | --: | --: | --: | --: |")
    jobs = [(model, mode) for model in args.model or list_backbones() for mode in args.mode or MODES]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        fine = list(pool.map(lambda job: in_a_process(args, *job, Path(folder) / "lock"), jobs))
    sys.exit(not all(fine))


def in_a_process(args: argparse.Namespace, model: str, mode: str, lock: Path) -> bool:
    """Run one job in a fresh process and print its row."""
    command = [sys.executable, __file__, "--alone", model, mode, str(lock), "--batch-size", str(args.batch_size)]
    command += ["--kernels", str(args.kernels), *["--pad"][: args.pad]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, check=False)
    except subprocess.TimeoutExpired:
        print(f"| {model} | {mode} | not within {args.limit:g} s | | | |", flush=True)
        return False
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"| {model} | {mode} | FAILED: {last[:200]} | | | |", flush=True)
        return False
    print(done.stdout.rstrip(), flush=True)
    return True


def time_one(args: argparse.Namespace, name: str, mode: str, lock: str) -> None:
    """Compile one model, wait for the turn, time it and print its row."""
    if args.pad:
        import torch._inductor.config

        torch._inductor.config.force_shape_pad = True
    torch.manual_seed(0)
    training = mode != "infer"
    model = timm.create_model(name).cuda().to(memory_format=torch.channels_last).train(training)
    side = model.pretrained_cfg["input_size"][-1]
    images = torch.randn(args.batch_size, 3, side, side, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (args.batch_size,), device="cuda")
    compiled = compile_parts(model) if mode == "blocks" else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.set_grad_enabled(training), torch.autocast("cuda", torch.bfloat16):
            answer = compiled(images)
            loss = nn.functional.cross_entropy(answer, labels)
        if training:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    with open(lock, "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        torch.cuda.reset_peak_memory_stats()
        milliseconds = sorted(timed(step) for _ in range(6))[2]
        kernels = longest_kernels(step, args.kernels) if args.kernels else []
    speed, memory = args.batch_size / milliseconds * 1e3, torch.cuda.max_memory_allocated() / 2**30
    print(f"| {name} | {mode} | {speed:,.0f} | {milliseconds:.2f} | {first:.0f} s | {memory:.1f} GiB |")
    print("\n".join(kernels), end="\n" * bool(kernels))


def timed(step, rounds: int = 5) -> float:
    """Return milliseconds of a step by the device's own clock, a mean of several in a row."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    for _ in range(rounds):
        step()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / rounds


def longest_kernels(step, count: int, rounds: int = 3) -> list[str]:
    """Return a line for each of the kernels that take longest in a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
    rows = [(one.self_device_time_total / rounds / 1e3, one.count // rounds, one.key) for one in profile.key_averages()]
    return [f"    {spent:7.3f} ms {times:4d}x {name[:110]}" for spent, times, name in sorted(rows)[::-1][:count]]


if __name__ == "__main__":
    main()
