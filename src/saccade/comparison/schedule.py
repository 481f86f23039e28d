"""Run the runs of a comparison: one after another here, or side by side in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import TrainConfig, overlay
from ..training.loop import Interrupted
from .budget import Pace
from .watch import Watch
from .worker import Outcome, probe, train_run

POLL = 0.2  # seconds between looks at the processes
GRACE = 60.0  # seconds they get to save their states


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    config: TrainConfig
    path: Path

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Slot:
    """A place where one run at a time goes: surroundings of its process, and its number of CPU threads."""

    environment: Mapping[str, str]
    threads: int | None = None


def make_slots(parallel: int | None, device: str, *, gpus: Sequence[str], cores: int) -> list[Slot]:
    """Return the places for runs; an empty list means one after another in this process.

    Args:
        parallel: runs side by side; None is one a GPU, and on a CPU one in this process.
        device: as asked: auto, cpu, cuda, cuda:1.
        gpus: as `CUDA_VISIBLE_DEVICES` would name them; empty without.
        cores: of the CPU, split over processes.
    """
    if parallel is not None and parallel < 1:
        raise ValueError(f"parallel={parallel} was given; it is how many runs go side by side, 1 or more")
    kind, _, number = device.partition(":")
    if gpus and kind in ("auto", "cuda"):
        if number and int(number) >= len(gpus):
            raise ValueError(f"device={device!r} was given; there are {len(gpus)} GPUs, counted from 0")
        gpus = [gpus[int(number)]] if number else gpus
        return [Slot({"CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]}) for n in range(parallel or len(gpus))]
    if parallel is None:
        return []
    threads = max(cores // parallel, 1)
    return [Slot({"OMP_NUM_THREADS": str(threads)}, threads) for _ in range(parallel)]


def visible_gpus() -> list[str]:
    """Return the GPUs as `CUDA_VISIBLE_DEVICES` names them, without waking them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def run_jobs(jobs: Sequence[Job], slots: Sequence[Slot], watch: Watch) -> dict[tuple[str, int], Outcome]:
    """Run all jobs and say how each ended.

    Args:
        jobs: in the order in which they are begun.
        slots: where; none is this process.
        watch: is told what goes on.
    """
    with watch:
        return run_side_by_side(jobs, slots, watch) if slots else run_here(jobs, watch)


def run_here(jobs: Sequence[Job], watch: Watch) -> dict[tuple[str, int], Outcome]:
    """Run jobs one after another in this process; Ctrl-C leaves the present one resumable."""
    found = {}
    for job in jobs:
        watch.begin(job, job.path, job.config.schedule.epochs)
        found[(job.arm, job.seed)] = outcome = train_run(job.config, job.path)
        watch.end(job, outcome)
    return found


@dataclass
class _Working:
    job: Job
    slot: Slot
    process: "subprocess.Popen[bytes]"
    answer: Path
    retried: bool


def run_side_by_side(jobs: Sequence[Job], slots: Sequence[Slot], watch: Watch) -> dict[tuple[str, int], Outcome]:
    """Run jobs in processes of their own; one that dies is gone on with once."""
    waiting = deque((job, False) for job in jobs)
    free, working = list(slots), list[_Working]()
    found: dict[tuple[str, int], Outcome] = {}
    try:
        while waiting or working:
            while waiting and free:
                job, retried = waiting.popleft()
                working.append(_start(job, free.pop(0), retried))
                watch.begin(job, job.path, job.config.schedule.epochs)
            time.sleep(POLL)
            for one in [one for one in working if one.process.poll() is not None]:
                working.remove(one)
                free.append(one.slot)
                outcome = _read_outcome(one)
                if outcome.kind not in ("finished", "refused") and not one.retried:
                    watch.say(f"{one.job}: {outcome.reason}; going on with it once more")
                    waiting.append((one.job, True))
                    watch.end(one.job, None)
                    continue
                watch.end(one.job, outcome)
                found[(one.job.arm, one.job.seed)] = outcome
    except KeyboardInterrupt:
        watch.say("saving and stopping all runs ...")
        raise Interrupted(signal.SIGINT, jobs[0].path.parent) from None
    finally:
        _stop([one.process for one in working])
    return found


def _start(job: Job, slot: Slot, retried: bool) -> _Working:
    answer = job.path.with_name(f".{job.path.name}.answer.json")
    spec = {"do": "train", "config": _for_slot(job.config, slot), "path": str(job.path), "answer": str(answer)}
    log = job.path.with_name(f"{job.path.name}.log")
    return _Working(job, slot, spawn(spec, slot, log, answer), answer, retried)


def _for_slot(config: TrainConfig, slot: Slot) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if "CUDA_VISIBLE_DEVICES" in slot.environment:
        changes["engine.device"] = "cuda"  # the only one its process sees
    if slot.threads is not None and config.engine.threads is None:
        changes["engine.threads"] = slot.threads
    return asdict(overlay(config, changes))


def spawn(spec: Mapping[str, Any], slot: Slot, log: Path, answer: Path) -> "subprocess.Popen[bytes]":
    """Start a worker; it stops when this process is gone, since its input then ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    answer.unlink(missing_ok=True)
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "saccade.comparison.worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **slot.environment},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
        )


def _read_outcome(one: _Working) -> Outcome:
    _close(one.process)
    try:
        return Outcome(**json.loads(one.answer.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        code = one.process.returncode
        told = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return Outcome("failed", f"its process was {told}; see {one.job.path.with_name(one.job.path.name + '.log')}")
    finally:
        one.answer.unlink(missing_ok=True)


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(process)


def _close(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def time_probe(config: TrainConfig, slots: Sequence[Slot], folder: Path) -> Pace:
    """Time a few steps of a run where it will run.

    Args:
        config: of the run.
        slots: as for `run_jobs`; the first is used.
        folder: for what the process says.
    """
    if not slots:
        return probe(config)
    answer, log = folder / ".probe.json", folder / "probe.log"
    spec = {"do": "probe", "config": _for_slot(config, slots[0]), "answer": str(answer)}
    begun = time.monotonic()
    process = spawn(spec, slots[0], log, answer)
    try:
        process.wait()
        wall = time.monotonic() - begun
        found = json.loads(answer.read_text(encoding="utf-8"))
    except OSError:
        raise RuntimeError(f"timing failed: the process ended with {process.returncode}; see {log}") from None
    finally:
        _stop([process])
        answer.unlink(missing_ok=True)
    if "pace" not in found:
        raise RuntimeError(found["reason"])
    pace = Pace(**found["pace"])
    return replace(pace, startup=pace.startup + max(wall - found["inside"], 0.0))  # its process has to start, too
