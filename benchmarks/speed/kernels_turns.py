"""Time what `saccade.optimize` compiles, several versions of the code in turns on one GPU.

Each version has a process of its own; all start together and share FOLDER:

    export TURNS=old,new
    PYTHONPATH=OTHER/src python benchmarks/speed/kernels_turns.py nommer_tiny auto old FOLDER &
    PYTHONPATH=src       python benchmarks/speed/kernels_turns.py nommer_tiny auto new FOLDER

A process compiles the model (bfloat16, batches of 256), waits until every label of TURNS is ready, takes turns of 20
calls under a lock, appends its times to FOLDER/times.jsonl and writes the kernels of a call by their time to
FOLDER/profile_LABEL.txt.
"""

import fcntl
import inspect
import json
import os
import statistics
import sys
import time
from pathlib import Path

import timm
import torch
from torch.profiler import ProfilerActivity, profile

from saccade.deployment.optimize import optimize

ROUNDS, CALLS = 6, 20
PATIENCE = float(os.environ.get("TURNS_WAIT", "200"))  # seconds for the others to get ready


def main(name: str, kernels: str, label: str, folder: Path) -> None:
    began = time.monotonic()
    model = timm.create_model(name, num_classes=1000).cuda().eval().to(torch.bfloat16)
    images = torch.randn(256, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    switched = {"kernels": kernels} if "kernels" in inspect.signature(optimize).parameters else {}
    os.environ["SACCADE_KERNELS"] = kernels  # which versions without the argument read
    fast = optimize(model, images, compile=True, **switched)
    with torch.inference_mode():
        for _ in range(5):
            fast(images)
    torch.cuda.synchronize()
    ready = time.monotonic() - began
    (folder / f"ready_{label}").touch()
    others = [folder / f"ready_{other}" for other in os.environ.get("TURNS", label).split(",")]
    while time.monotonic() - began < PATIENCE and not all(other.exists() for other in others):
        time.sleep(0.5)
    times = []
    with (folder / "lock").open("w") as lock, torch.inference_mode():
        for _ in range(ROUNDS):
            fcntl.flock(lock, fcntl.LOCK_EX)
            fast(images)
            torch.cuda.synchronize()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(CALLS):
                fast(images)
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) / CALLS)
            fcntl.flock(lock, fcntl.LOCK_UN)
            time.sleep(0.1)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            fast(images)
            torch.cuda.synchronize()
    row = {"model": name, "kernels": kernels, "label": label, "ms": statistics.median(times), "all": times}
    with (folder / "times.jsonl").open("a") as file:
        file.write(json.dumps({**row, "ready": ready, "device": torch.cuda.get_device_name()}) + "\n")
    rows = sorted(profiled.key_averages(), key=lambda event: -event.self_device_time_total)
    lines = [f"{event.self_device_time_total / 1000:8.3f} ms {event.count:4d} {event.key[:150]}" for event in rows]
    (folder / f"profile_{label}.txt").write_text("\n".join(lines[:45]) + "\n")


if __name__ == "__main__":
    *words, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    main(*words, Path(folder))
