"""Worker processes of a comparison, one per slot, reused for several runs.

Imports and compiled code are reused for all runs of a slot.
"""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...settings import TrainConfig, overlay
from ...support.spawning import VISIBLE, end_early, named_gpus, start, take_early
from ...training.pace import Pace
from ..plan.snapshot import DataCache
from .worker import probe

POLL = 0.05  # seconds between polls
GRACE = 60.0  # seconds to save states


@dataclass(frozen=True)
class Slot:
    """A slot for one run at a time: environment of its process, and number of CPU threads."""

    environment: Mapping[str, str]
    threads: int | None = None

    def settings(self, config: TrainConfig) -> dict[str, Any]:
        """Return a run's settings for its process."""
        changes: dict[str, Any] = {}
        if VISIBLE in self.environment:
            changes["engine.device"] = "cuda"  # the only GPU visible to the process
        if self.threads is not None and config.engine.threads is None:
            changes["engine.threads"] = self.threads
        return asdict(overlay(config, changes))


def make_slots(parallel: int | None, device: str, *, gpus: Sequence[str], cores: int) -> list[Slot]:
    """Return the slots; an empty list means sequential runs in this process.

    Args:
        parallel: number of parallel runs; None: one per GPU, or one in this process on a CPU.
        device: requested device: auto, cpu, cuda, cuda:1.
        gpus: GPUs as in `CUDA_VISIBLE_DEVICES`.
        cores: CPU cores, divided among processes.
    """
    if parallel is not None and parallel < 1:
        raise ValueError(f"parallel={parallel}: expected the number of concurrent runs, 1 or more")
    kind, _, number = device.partition(":")
    if gpus and kind in ("auto", "cuda"):
        if number and int(number) >= len(gpus):
            raise ValueError(f"device={device!r}: no such GPU; there are {len(gpus)}, numbered from 0")
        gpus = [gpus[int(number)]] if number else gpus
        return [Slot({VISIBLE: gpus[n % len(gpus)]}) for n in range(parallel or len(gpus))]
    if parallel is None:
        return []
    threads = max(cores // parallel, 1)
    return [Slot({"OMP_NUM_THREADS": str(threads)}, threads) for _ in range(parallel)]


def shared_by(slots: Sequence[Slot]) -> int:
    """Return the number of slots per GPU, by which runs may slow down; 1 on a CPU."""
    named = Counter(gpu for slot in slots if (gpu := slot.environment.get(VISIBLE)) is not None)
    return max(named.values(), default=1)


def visible_gpus() -> list[str]:
    """Return the GPUs as in `CUDA_VISIBLE_DEVICES`, without initialising CUDA."""
    import torch

    count, named = torch.cuda.device_count(), named_gpus()
    return named[:count] if named else [str(number) for number in range(count)]


class Worker:
    """A worker process of a slot, started when needed and kept while it succeeds."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.process: subprocess.Popen[bytes] | None = None
        self.answer = self.log = Path()

    def begin(self, asked: Mapping[str, Any], *, answer: Path, log: Path) -> None:
        """Send a job to the worker, which writes its result and log to the given files."""
        self.answer, self.log = answer, log
        log.parent.mkdir(parents=True, exist_ok=True)
        answer.unlink(missing_ok=True)
        text = json.dumps({**asked, "answer": str(answer), "log": str(log)})
        if self.process is None or not _send(self.process, text):
            self.stop()
            self.process = start(self.slot.environment, log)
            _send(self.process, text)

    def ended(self) -> bool:
        """Whether the job has ended or the worker has died."""
        return self.answer.exists() or self.process is None or self.process.poll() is not None

    def read(self) -> dict[str, Any]:
        """Return the result; raise RuntimeError if the worker died."""
        try:
            return dict(json.loads(self.answer.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            code = None if self.process is None else self.process.wait()
            self.stop()
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
            raise RuntimeError(f"its process was {how}; see {self.log}") from None
        finally:
            self.answer.unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop the process; a running training saves its state."""
        stop_all([self])


class Crew:
    """The worker processes of a comparison, one per slot; they are stopped at exit from the context."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.workers = [Worker(slot) for slot in slots]
        for worker in self.workers[:1]:
            worker.process = take_early(worker.slot.environment)
        end_early()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self) -> None:
        """Start the first process in advance."""
        for worker in self.workers[:1]:
            worker.process = worker.process or start(worker.slot.environment, Path(os.devnull))

    def dismiss(self) -> None:
        """Tell all idle processes to exit; `close` waits for them."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.terminate()

    def close(self) -> None:
        """Stop all processes."""
        stop_all(self.workers)


def _send(process: "subprocess.Popen[bytes]", text: str) -> bool:
    """Send a line to a process; False if it has exited."""
    if process.poll() is not None or process.stdin is None:
        return False
    try:
        process.stdin.write(f"{text}\n".encode())
        process.stdin.flush()
    except OSError:
        return False
    return True


def stop_all(workers: Sequence[Worker]) -> None:
    """Stop processes together; running trainings save their states."""
    processes = [worker.process for worker in workers if worker.process is not None]
    for worker in workers:
        worker.process = None
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


def time_probe(config: TrainConfig, crew: Crew, folder: Path, cache: DataCache | None = None) -> Pace:
    """Time a few steps of a run, in the first worker or in this process."""
    if not crew.workers:
        return probe(config, cache)
    worker = crew.workers[0]
    try:
        found = ask(worker, {"do": "probe", "config": worker.slot.settings(config)}, folder)
    except RuntimeError as error:
        raise RuntimeError(f"timing failed: {error}") from None
    return Pace(**found["pace"])


def ask(worker: Worker, asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Send a job to a worker and return its result; raise RuntimeError if it fails."""
    try:
        worker.begin(asked, answer=folder / ".asked.json", log=folder / "asked.log")
        while not worker.ended():
            time.sleep(POLL)
        found = worker.read()
    except RuntimeError:
        raise
    except BaseException:
        worker.stop()
        raise
    if found.get("kind") == "failed":
        worker.stop()
        raise RuntimeError(found["reason"])
    return found
