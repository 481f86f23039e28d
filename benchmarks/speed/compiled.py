"""Compile backbones on a GPU, each in a fresh process, and time them: does every one compile, and how fast is it then?

    python benchmarks/speed/compiled.py  # every registered backbone, inference and training
    python benchmarks/speed/compiled.py --model glnet_stl --mode infer --kernels 20
    python benchmarks/speed/compiled.py --model glnet_stl --pad  # as if the compiler found padding faster everywhere
    python benchmarks/speed/compiled.py --first --model glnet_nano --img-size 32 --batch-size 512

Half precision by autocast, images channels-last. Processes compile side by side (`--jobs`), and take turns to be timed.
A model that does not compile within the time limit, or fails, is a row that says so; the exit status is then 1.

`--first` times the first step of training, compiled block by block, with nothing in the compiler's cache and then with
all kinds of blocks in it. `missed` counts what the step had to compile itself.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import timm
import torch
from torch import nn

import saccade
from saccade.models import list_backbones
from saccade.settings import TrainConfig, overlay
from saccade.support.spawning import cores
from saccade.training.engine import PLACE, compile_parts, torch_settings

MODES = ("train", "blocks", "infer")  # what takes longest first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times; all of saccade's by default")
    parser.add_argument("--mode", action="append", choices=MODES, help="blocks: training, compiled block by block")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds a process may take")
    parser.add_argument("--pad", action="store_true", help="let the compiler pad every product whose sides are uneven")
    parser.add_argument("--kernels", type=int, default=0, help="how many of the longest kernels to list")
    parser.add_argument("--img-size", type=int, help="side of the images; the model's own by default")
    parser.add_argument("--first", action="store_true", help="time the first step with an empty cache")
    parser.add_argument("--first-alone", nargs=2, metavar=("MODEL", "HOW"), help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs=3, metavar=("MODEL", "MODE", "LOCK"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        time_one(args, *args.alone)
        return
    if args.first_alone:
        time_first(args, *args.first_alone)
        return
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = f"torch {torch.__version__}, timm {timm.__version__}"
    print(f"{where}, {cores()} cores; {versions}; {time.strftime('%F')}")
    print(f"Command: python benchmarks/speed/compiled.py {' '.join(sys.argv[1:])}\n")
    if args.first:
        print("| model | cache | first step | missed |\n| --- | --- | --: | --: |")
        fine = [first_steps(args, model) for model in args.model or list_backbones()]
        sys.exit(not all(fine))
    print("| model | mode | images/s | ms a batch | first call | peak memory |\n| --- | --- | --: | --: | --: | --: |")
    jobs = [(model, mode) for mode in args.mode or MODES for model in args.model or list_backbones()]
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
        from torch._inductor import config as inductor

        inductor.force_shape_pad = True
    torch.manual_seed(0)
    training = mode != "infer"
    model, images, labels = build(args, name, torch.device("cuda"))
    model.train(training)
    saccade.accelerate(model, "train" if training else "infer")
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


def build(args: argparse.Namespace, name: str, device: torch.device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a model and a batch for it, channels-last."""
    try:
        model = timm.create_model(name, **({"img_size": args.img_size} if args.img_size else {}))
    except TypeError:  # takes images of any size
        model = timm.create_model(name)
    side = args.img_size or model.pretrained_cfg["input_size"][-1]
    images = torch.randn(args.batch_size, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)
    return model.to(device).to(memory_format=torch.channels_last), images, labels


def first_steps(args: argparse.Namespace, model: str) -> bool:
    """Print the rows of one model's first step, each in a fresh process."""
    command = [sys.executable, __file__, "--batch-size", str(args.batch_size)]
    command += ["--img-size", str(args.img_size)] if args.img_size else []
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    fine = True
    with tempfile.TemporaryDirectory() as place:
        for how in ("empty", "full"):
            one = [*command, "--first-alone", model, how]
            environment[PLACE] = place
            try:
                done = subprocess.run(one, env=environment, capture_output=True, text=True, timeout=args.limit)
                row = done.stdout.strip() if not done.returncode else f"FAILED: {done.stderr.strip()[-300:]}"
            except subprocess.TimeoutExpired:
                row = f"not within {args.limit:g} s"
            fine = fine and row.startswith("| ")
            print(row if row.startswith("| ") else f"| {model} | {how} | {row} | |", flush=True)
    return fine


def time_first(args: argparse.Namespace, name: str, how: str) -> None:
    """Make one step of training and print how long it took."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    gpu = device.type == "cuda"
    config = overlay(TrainConfig(), {"engine.compile": True})
    torch.manual_seed(0)
    with torch_settings(config, device):
        model, images, labels = build(args, name, device)
        saccade.accelerate(model)
        compile_parts(model.train())
        begun = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16 if gpu else torch.float32, enabled=gpu):
            nn.functional.cross_entropy(model(images), labels).backward()
        if gpu:
            torch.cuda.synchronize()
        all_of_it = time.perf_counter() - begun
    counts = torch._dynamo.utils.counters
    missed = counts["inductor"]["fxgraph_cache_miss"] + counts["aot_autograd"]["autograd_cache_miss"]
    print(f"| {name} | {how} | {all_of_it:.1f} s | {missed} |")


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
