"""Images a second of whole training steps on a GPU as `saccade train` makes them, and their longest kernels.

    python benchmarks/speed/training_step.py --data a.npz,b.npz nano_adamw_512 wider_muon_1024

Every case compiles in a process of its own; the processes take turns to be timed.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDER = {"dims": [96, 192], "depths": [2, 6], "pattern": ["G", "GA"]}
CASES: dict[str, tuple[dict[str, Any], str, int]] = {  # options of glnet_nano, optimizer, images of a batch
    "nano_adamw_512": ({}, "adamw", 512),
    "nano_adamw_1024": ({}, "adamw", 1024),
    "nano_muon_512": ({}, "muon", 512),
    "wider_muon_512": (WIDER, "muon", 512),
    "wider_muon_1024": (WIDER, "muon", 1024),
    "wider_muon_2048": (WIDER, "muon", 2048),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--data", required=True, help="an archive of small images")
    parser.add_argument("--kernels", type=int, default=20, help="how many of the longest to list")
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.lock:
        time_one(args.cases[0], args)
        return
    names = args.cases or list(CASES)
    threads = str(max((os.cpu_count() or 1) // len(names), 1))
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads, "OMP_NUM_THREADS": threads}
    with tempfile.TemporaryDirectory() as folder:
        more = ["--data", args.data, "--kernels", str(args.kernels), "--lock", f"{folder}/lock"]
        made = [subprocess.Popen([sys.executable, __file__, name, *more], env=environment) for name in names]
        sys.exit(max(process.wait() for process in made))


def time_one(name: str, args: argparse.Namespace) -> None:
    """Compile a case, wait for the turn, and print what its steps take."""
    import torch
    from steps import Ours

    options, optimizer, batch = CASES[name]
    given = {
        "data.path": args.data,
        "model.name": "glnet_nano",
        "model.options": options,
        "optim.batch_size": batch,
        "optim.name": optimizer,
        "optim.momentum": 0.95,
        "optim.lr": 2e-3,
        "keep.ema": 0.999,
    }
    with tempfile.TemporaryDirectory() as folder, open(args.lock, "w") as turn:
        side = Ours("classify", given, Path(folder) / "run", torch.device("cuda"))
        begun = time.perf_counter()
        side.epoch(0)
        torch.cuda.synchronize()
        first = time.perf_counter() - begun
        fcntl.flock(turn, fcntl.LOCK_EX)
        speeds = []
        for number in range(1, 4):
            begun = time.perf_counter()
            images = side.epoch(number)
            torch.cuda.synchronize()
            speeds.append(images / (time.perf_counter() - begun))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            side.epoch(4)
            torch.cuda.synchronize()
        steps = side.loop.feed.steps
        rows = [
            (one.self_device_time_total / steps / 1e3, one.count / steps, one.key) for one in profile.key_averages()
        ]
        total, count = sum(row[0] for row in rows), sum(row[1] for row in rows)
        told = f"{name}: first {first:.0f} s; images/s {[round(speed) for speed in speeds]}; "
        lines = [f"{told}{1e3 * batch / max(speeds):.2f} ms a step, {total:.2f} of them {count:.0f} kernels"]
        lines += [f"    {spent:7.4f} ms {times:6.1f}x {key[:110]}" for spent, times, key in sorted(rows)[::-1]]
        print("\n".join(lines[: args.kernels + 1]), flush=True)


if __name__ == "__main__":
    main()
