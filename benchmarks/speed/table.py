"""Every row of the GPU's table of speeds in one command: each in a process of its own, timed one after the other.

    python benchmarks/speed/table.py --out results  # all rows, about six minutes of an H200
    python benchmarks/speed/table.py --out results --only glnet_stl  # rows whose name has that in it
    DEV=cpu python benchmarks/speed/table.py --out results --batch-size 2 --size 64 --no-compile --limit 120  # a trial

A few processes at a time compile; when the last one is ready, or the limit has passed, they are timed in turns, so
that nothing else runs on the GPU meanwhile. Training steps are timed as they are and captured as a CUDA graph, as
`saccade train` runs them. Half precision by autocast, channels-last images, AdamW. Ratios are against
`swin_tiny` compiled in the same run. Results are written as a JSON file for each row and as table.json, and printed.
"""

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from table_page import DEIT, DEVICE, GOALS, PLUGINS, PUBLISHED, SWIN, as_markdown, machine, read, write
from torch import nn

import saccade
from saccade.training.engine import Replay

OURS = ("glnet_stl", "glnet_4g", "nommer_tiny", "sot_small")
SIZES = (224, 384, 512, 768, 1024)
PUBLISHED["sot_small"] = (3787, 0, 0)
GOALS |= {"nommer_tiny": (1.0, 1.2, 1.0, 1.2), "sot_small": (1.1, 1.5, 0.9, 1.2)}


def rows() -> list[str]:
    """Return the rows as MODEL.MODE or MODEL.MODE.VARIANT, those that decide first."""
    names = [f"{model}.train" for model in ("glnet_4g", SWIN, "nommer_tiny", "sot_small", "glnet_stl")]
    names += [f"{model}.infer" for model in (SWIN, "glnet_4g", "sot_small", "nommer_tiny", "glnet_stl")]
    names += [f"{model}.train.{plugin}" for model in (DEIT, SWIN) for plugin in PLUGINS]
    names += [f"{model}.optimized" for model in OURS]
    names += [f"{model}.{mode}" for mode in ("eager", "train_eager") for model in (*OURS, SWIN)]
    return [*dict.fromkeys(names), "glnet_stl.pixels"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", action="append", help="rows whose name has this in it; may be given several times")
    parser.add_argument("--rows", help="these rows alone, with commas between")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="image side")
    parser.add_argument("--limit", type=float, default=330, help="seconds until the first is timed")
    parser.add_argument("--at-once", type=int, default=6, help="rows that compile side by side")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernels", type=int, default=25, help="how many of the longest kernels to keep of a row")
    parser.add_argument("--no-compile", action="store_true", help="try the script itself")
    parser.add_argument("--alone", metavar="ROW", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        measure_alone(args)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in rows() if not args.only or any(part in name for part in args.only)]
    if args.rows:
        names = [name for name in names if name in args.rows.split(",")]
    # Those that compile nothing come after the others have given their memory back.
    for wave in ([n for n in names if not _eager(n)], [n for n in names if _eager(n)]):
        for old in args.out.glob("*.ready"):
            old.unlink()
        (args.out / "go").unlink(missing_ok=True)
        run_all(wave, args)
    results = {name: read(args.out / f"{name}.json") for name in names}
    (args.out / "table.json").write_text(json.dumps({"machine": machine(), "rows": results}, indent=1))
    print(as_markdown(results))


def _eager(name: str) -> bool:
    return name.split(".")[1] in ("eager", "train_eager", "pixels")


def run_all(names: list[str], args: argparse.Namespace) -> None:
    """Start a process for every row, open the gate when all are ready or the limit has passed, and wait for them."""
    begun = time.monotonic()
    command = [sys.executable, __file__, *sys.argv[1:]]
    running: dict[str, subprocess.Popen[bytes]] = {}
    left = list(names)
    while time.monotonic() - begun < args.limit:
        busy = [n for n, p in running.items() if p.poll() is None and not (args.out / f"{n}.ready").exists()]
        if not left and not busy:
            break
        if left and len(busy) < args.at_once:
            name = left.pop(0)
            env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "2"}
            env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
            with open(args.out / f"{name}.log", "w") as log:
                running[name] = subprocess.Popen([*command, "--alone", name], stdout=log, stderr=log, env=env)
        else:
            time.sleep(0.2)
    for name in left:
        write(args.out / f"{name}.json", {"error": f"not begun within {args.limit:g} s"})
    for name, process in running.items():
        if process.poll() is None and not (args.out / f"{name}.ready").exists():
            process.kill()
            write(args.out / f"{name}.json", {"error": f"not ready within {args.limit:g} s"})
    print(f"all that will be timed are ready after {time.monotonic() - begun:.0f} s", flush=True)
    (args.out / "go").touch()
    for process in running.values():
        process.wait()
    print(f"done after {time.monotonic() - begun:.0f} s\n", flush=True)


def measure_alone(args: argparse.Namespace) -> None:
    """Prepare one row, wait for the gate and the turn, time it and write what came out."""
    name, place = args.alone, args.out / f"{args.alone}.json"
    try:
        begun = time.perf_counter()
        step, images = prepare(name, args)
        with_room(step)
        first = time.perf_counter() - begun
        step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        (args.out / f"{name}.ready").touch()
        parent = os.getppid()
        while not (args.out / "go").exists():
            time.sleep(0.05)
            if os.getppid() != parent:  # nobody is left to open the gate
                return
        with open(args.out / "turn", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            write(place, {"first_call_s": round(first, 1), **timed(step, images, args)})
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
    except Exception as error:  # a row that fails says so and leaves the others alone
        traceback.print_exc()
        write(place, {"error": f"{type(error).__name__}: {str(error)[:300]}"})


def with_room(step: Callable[[], Any], tries: int = 8) -> None:
    """Run a step; where other processes hold the memory at that moment, wait and try again."""
    for left in reversed(range(tries)):
        try:
            step()
        except torch.OutOfMemoryError:
            if not left:
                raise
            torch.cuda.empty_cache()
            time.sleep(5)
        else:
            return


def timed(step: Callable[[], Any], images: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the median milliseconds of a step over rounds, all rounds, images/s, memory and the longest kernels."""
    if isinstance(pixels := getattr(step, "pixels", None), list):
        return {"pixels": [[size, batch, statistics.median(clock(call, args.rounds))] for size, batch, call in pixels]}
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    spent = clock(step, args.rounds)
    middle = statistics.median(spent)
    found = {"ms": middle, "rounds": spent, "images_per_second": 1e3 * images / middle}
    if DEVICE == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["kernels"] = longest_kernels(step, args.kernels)
    if DEVICE == "cuda" and hasattr(step, "body"):
        found |= captured(step.body, images, args)
    return found


def captured(body: Callable[[], None], images: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a training step that is replayed as a CUDA graph, or why it cannot be."""
    try:
        replay = Replay(body)
        for _ in range(replay.left + 1):
            replay([])
        middle = statistics.median(clock(lambda: replay([]), args.rounds))
    except Exception as error:  # the row itself stands
        return {"replayed_error": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"replayed_ms": middle, "replayed_per_second": 1e3 * images / middle}


def clock(step: Callable[[], Any], rounds: int) -> list[float]:
    """Return the milliseconds of a step in each round, by the device's clock where it has one."""
    repeats = 5 if DEVICE == "cuda" else 1
    spent = []
    for _ in range(rounds + 1):
        if DEVICE == "cuda":
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            for _ in range(repeats):
                step()
            after.record()
            torch.cuda.synchronize()
            spent.append(before.elapsed_time(after) / repeats)
        else:
            begun = time.perf_counter()
            step()
            spent.append(1e3 * (time.perf_counter() - begun))
    return spent[1:]


def longest_kernels(step: Callable[[], Any], count: int, rounds: int = 2) -> list[list[Any]]:
    """Return milliseconds, calls and names of the kernels that take longest in a step, and their total first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
    found = [(e.self_device_time_total / rounds / 1e3, e.count // rounds, e.key[:160]) for e in profile.key_averages()]
    found.sort(reverse=True)
    return [[sum(f[0] for f in found), 0, "total"], *map(list, found[:count])]


def prepare(name: str, args: argparse.Namespace) -> tuple[Callable[[], Any], int]:
    """Return one row's step and how many images that is."""
    model_name, mode, *variant = name.split(".")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if mode == "pixels":
        return by_size(model_name, args), args.batch_size
    images = random_images(args.batch_size, args.size)
    compiled = not args.no_compile and not mode.endswith("eager")
    if mode == "train" and variant and variant[0] in PLUGINS:
        return train_task(model_name, variant[0], images, compiled=compiled), args.batch_size
    model = create(model_name, args.size)
    if mode.startswith("train"):
        return train_model(model, images, compiled=compiled), args.batch_size
    model.eval()
    optimized = mode == "optimized"
    if optimized:  # a model in half precision instead of autocast: no weight is converted when it runs
        images = images.to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
        run = saccade.optimize(model.to(images.dtype), images[:2], compile=compiled)
    else:
        saccade.accelerate(model, "infer")
        run = torch.compile(model) if compiled else model

    def infer() -> None:
        with torch.inference_mode(), nullcontext() if optimized else half():
            run(images)

    return infer, args.batch_size


def train_model(model: nn.Module, images: torch.Tensor, *, compiled: bool) -> Callable[[], None]:
    """Return a training step of a classifier."""
    labels = torch.randint(1000, (len(images),), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=DEVICE == "cuda")
    saccade.accelerate(model)
    run = torch.compile(model.train()) if compiled else model.train()

    def step() -> None:
        with half():
            loss = nn.functional.cross_entropy(run(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step.body = step  # type: ignore[attr-defined]
    return step


def train_task(model_name: str, plugin: str, images: torch.Tensor, *, compiled: bool) -> Callable[[], None]:
    """Return a training step of a classifier with a plug-in; "plain" and "again" have none."""
    from saccade.tasks.auxiliary.drloc import RelativeLocalization
    from saccade.tasks.classification.task import Classify

    model = create(model_name, images.shape[-1])
    if plugin == "broadcast":
        saccade.attach(model, saccade.ContextBroadcast())
    elif plugin == "second_order":
        saccade.attach(model, saccade.SecondOrderHead(num_classes=1000))
    task: Any = RelativeLocalization(model, pairs=64) if plugin == "drloc" else Classify(model)
    task = task.to(DEVICE).train()
    labels = torch.randint(1000, (len(images),), device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(0)
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-4, fused=True, capturable=DEVICE == "cuda")
    saccade.accelerate(task)
    run = torch.compile(task) if compiled else task

    def step_with(drawn: dict[str, torch.Tensor]) -> None:
        with half():
            loss = run(images, labels, **drawn)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def draw() -> dict[str, torch.Tensor]:
        return task.draw(len(images), device=torch.device(DEVICE), generator=generator)

    def step() -> None:
        step_with(draw())

    kept = draw()  # a graph reads what lies in its inputs
    step.body = lambda: step_with(kept)  # type: ignore[attr-defined]
    return step


def by_size(model_name: str, args: argparse.Namespace) -> Callable[[], None]:
    """Return a step that runs a model at all sizes, batches of about as many pixels each, with a list of the parts."""
    model = create(model_name, 224).eval()
    parts = []
    for size in SIZES if DEVICE == "cuda" else (64, 96):
        batch = max(1, round(args.batch_size * (224 / size) ** 2 / 2))
        images = random_images(batch, size)

        def infer(images: torch.Tensor = images) -> None:
            with torch.inference_mode(), half():
                model(images)

        parts.append((size, batch, infer))

    def step() -> None:
        for _, _, infer in parts:
            infer()

    step.pixels = parts  # type: ignore[attr-defined]
    return step


def create(name: str, size: int) -> nn.Module:
    """Build a model on the device, its weights channels-last."""
    from saccade.evaluation.speed import create_for

    return create_for(name, size).to(DEVICE).to(memory_format=torch.channels_last)


def random_images(batch: int, size: int) -> torch.Tensor:
    """Return images on the device, channels-last."""
    return torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)


def half() -> torch.autocast:
    """Return autocast to bfloat16 on a GPU."""
    return torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda")


if __name__ == "__main__":
    main()
