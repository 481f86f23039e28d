"""Run the runs of a comparison, here or side by side in processes of their own, and show how far they are."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, Progress, TextColumn

from ..config import TrainConfig, overlay
from ..durations import say_duration
from ..runs import Run
from ..tasks.metric import MetricSpec
from ..training.loop import Interrupted
from ..training.pace import Pace
from .cut import STRIDE, Piece
from .worker import Outcome, probe, train_run

TICK = 1.0  # seconds between looks at how far the runs are
POLL = 0.2  # seconds between looks at the processes
LEAST_SEEDS = 2  # that are run whatever the time
GRACE = 60.0  # seconds they get to save their states


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    config: TrainConfig
    path: Path
    piece: Piece | None = None  # of a pass over folds

    def __str__(self) -> str:
        if self.piece is None:
            return f"{self.arm}, seed {self.seed}"
        cut = f" of cut {self.piece.repeat + 1}" if self.piece.repeat else ""
        return f"{self.arm}, seed {self.piece.whole % STRIDE}, fold {self.piece.fold + 1}{cut}"


@dataclass(frozen=True)
class Slot:
    """A place where one run at a time goes: environment of its process, and its number of CPU threads."""

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


class Watch:
    """A bar over all runs, with those under way and when it will be over; a line for each that ended.

    Args:
        total: runs to do.
        seconds: all of it is expected to take; None if nobody knows.
        metric: that runs are judged by, shown of each that finished; None shows none.
        quiet: say nothing.
    """

    def __init__(
        self, *, total: int, seconds: float | None = None, metric: MetricSpec | None = None, quiet: bool = False
    ) -> None:
        self.out = rich.console.Console(stderr=True, quiet=quiet)
        self.total, self.expected, self.metric = total, seconds, metric
        self.ended = 0
        self.running: dict[str, tuple[Path, int]] = {}
        self.begun: dict[str, float] = {}
        self.progress = Progress(
            TextColumn("{task.fields[state]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[left]}"),
            console=self.out,
            transient=True,
            disable=quiet or not self.out.is_terminal,
        )
        self.bar = self.progress.add_task("", total=max(total, 1), state="", left="")
        self.over = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        self.since = time.monotonic()
        self.progress.start()
        if not self.progress.disable:
            self.thread = threading.Thread(target=self._tick, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.thread is not None:
            self.thread.join()
        self.progress.stop()

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print a remark above the bar."""
        self.out.print(text, style=style, highlight=False, markup=False)

    def begin(self, job: object, path: Path, epochs: int) -> None:
        """Take note of a run that begins."""
        self.running[str(job)] = (path, epochs)
        self.begun[str(job)] = time.monotonic()

    def end(self, job: object, outcome: Outcome | None) -> None:
        """Take note of a run that ended; None if it will be begun again."""
        path, _ = self.running.pop(str(job))
        if outcome is None:
            return
        self.ended += 1
        took = say_duration(time.monotonic() - self.begun[str(job)])
        if outcome.kind == "finished":
            result, style = f"{self._score(path)}{took}", None
        else:
            result, style = f"failed: {outcome.reason}", "yellow"
        self.say(f"{self.ended:>{len(str(self.total))}}/{self.total} {job}: {result}", style=style)

    def _score(self, path: Path) -> str:
        value = None if self.metric is None else Run(path).summary().get(f"val_{self.metric.name}")
        return "" if self.metric is None or value is None else f"{self.metric.words} {self.metric.show(value)}, "

    def _tick(self) -> None:
        while not self.over.wait(TICK):
            self.progress.update(self.bar, **self.standing(time.monotonic() - self.since))

    def standing(self, elapsed: float) -> dict[str, Any]:
        """Return what the bar shows after so many seconds."""
        running = list(self.running.items())
        parts = [min(len(Run(path).metrics()) / epochs, 1.0) for _, (path, epochs) in running]
        done = self.ended + sum(parts)
        left = elapsed * (self.total - done) / done if done >= 0.5 else (self.expected or 0.0) - elapsed
        names = "; ".join(name for name, _ in running[:3]) + (" ..." if len(running) > 3 else "")
        known = done >= 0.5 or self.expected is not None
        return {
            "completed": done,
            "state": f"{self.ended}/{self.total} runs, running: {names}",
            "left": f"about {say_duration(max(left, 0.0))} left" if known else "",
        }


class Clock:
    """Tells whether there is time for another seed, from how long runs took.

    Args:
        jobs: all of them, seed by seed.
        until: when the time is over, on the monotonic clock; None for never.
        slots: runs side by side.
    """

    def __init__(self, jobs: Sequence[Job], until: float | None, slots: int) -> None:
        self.until, self.slots = until, max(slots, 1)
        self.seeds = list(dict.fromkeys(job.seed for job in jobs))
        self.arms = len({job.arm for job in jobs})
        self.took: list[float] = []
        self.over = False

    def allows(self, seed: int) -> bool:
        """Whether a seed may begin: all of its runs fit, by those that ended; the first two always may."""
        if self.until is None or seed in self.seeds[:LEAST_SEEDS] or not self.took:
            return True
        rounds = -(-self.arms // self.slots)
        self.over = self.over or time.monotonic() + rounds * sum(self.took) / len(self.took) > self.until
        return not self.over


def run_jobs(
    jobs: Sequence[Job], slots: Sequence[Slot], watch: Watch, *, until: float | None = None
) -> dict[tuple[str, int], Outcome]:
    """Run all jobs and say how each ended; seeds for which there is no time are not begun.

    Args:
        jobs: in the order in which they are begun.
        slots: where; none is this process.
        watch: shows what happens.
        until: when the time is over, on the monotonic clock; None for never.
    """
    clock = Clock(jobs, until, len(slots))
    with watch:
        return run_side_by_side(jobs, slots, watch, clock) if slots else run_here(jobs, watch, clock)


def run_here(jobs: Sequence[Job], watch: Watch, clock: Clock | None = None) -> dict[tuple[str, int], Outcome]:
    """Run jobs one after another in this process; Ctrl-C leaves the present one resumable."""
    found = {}
    clock = clock or Clock(jobs, None, 1)
    seed = None
    for job in jobs:
        if job.seed != seed and not clock.allows(job.seed):
            break
        seed, begun = job.seed, time.monotonic()
        watch.begin(job, job.path, job.config.schedule.epochs)
        found[(job.arm, job.seed)] = outcome = train_run(job.config, job.path)
        clock.took.append(time.monotonic() - begun)
        watch.end(job, outcome)
    return found


@dataclass
class _Working:
    job: Job
    slot: Slot
    process: "subprocess.Popen[bytes]"
    answer: Path
    retried: bool


def run_side_by_side(
    jobs: Sequence[Job], slots: Sequence[Slot], watch: Watch, clock: Clock | None = None
) -> dict[tuple[str, int], Outcome]:
    """Run jobs in processes of their own; one that dies is resumed once."""
    clock = clock or Clock(jobs, None, len(slots))
    waiting = deque((job, False) for job in jobs)
    seeds: set[int] = set()  # that have begun
    free, working = list(slots), list[_Working]()
    found: dict[tuple[str, int], Outcome] = {}
    try:
        while waiting or working:
            while waiting and free:
                job, retried = waiting.popleft()
                if job.seed not in seeds and not clock.allows(job.seed):
                    continue
                seeds.add(job.seed)
                working.append(_start(job, free.pop(0), retried))
                watch.begin(job, job.path, job.config.schedule.epochs)
            time.sleep(POLL)
            for one in [one for one in working if one.process.poll() is not None]:
                working.remove(one)
                free.append(one.slot)
                outcome = _read_outcome(one)
                clock.took.append(time.monotonic() - watch.begun[str(one.job)])
                if outcome.kind not in ("finished", "refused") and not one.retried:
                    watch.say(f"{one.job}: {outcome.reason}; resuming it once")
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
        how = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return Outcome("failed", f"its process was {how}; see {one.job.path.with_name(one.job.path.name + '.log')}")
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
