"""Comparisons whose runs take turns in this process, or in a few that stay: CUDA and its libraries are loaded once.

Runs are seconds long on a large GPU, and a process needs half a minute before its first step. What is trained is the
same: a run depends on its settings alone.
"""

import gc
import importlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

from saccade.comparison.plan import planning
from saccade.comparison.plan.budget import Pace
from saccade.comparison.run import schedule
from saccade.comparison.run.schedule import Job, RunScheduler, Watch
from saccade.comparison.run.worker import Outcome, train_run
from saccade.data.cache import EncodedFeed, EncodedSamples
from saccade.data.feed import Batch
from saccade.data.validation import Validation


def share_process() -> None:
    """Let comparisons begun from here on train in this process, without timing arms beforehand."""
    planning.make_slots = lambda *_, **__: []
    planning.time_probe = _refuse_to_time
    schedule.train_run = _train_and_clear
    SharedFiles().install()


def share_processes(count: int) -> None:
    """Let comparisons begun from here on train in so many processes that stay, instead of one a run.

    Args:
        count: of processes; the calling script must keep its work under `if __name__ == "__main__"`.
    """
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=spawning, initializer=_end_with, initargs=(os.getpid(),))

    def run_in_pool(
        jobs: Sequence[Job],
        watch: Watch,
        scheduler: RunScheduler | None = None,  # noqa: ARG001
    ) -> dict[tuple[str, int], Outcome]:
        found, waiting = {}, {}
        for job in jobs:
            watch.begin(job, job.path, job.config.schedule.epochs)
            waiting[pool.submit(_train_and_clear, job.config, job.path)] = job
        for future in as_completed(waiting):
            job = waiting[future]
            found[(job.arm, job.seed)] = outcome = future.result()
            watch.end(job, outcome)
        return found

    planning.make_slots = lambda *_, **__: []
    planning.time_probe = _refuse_to_time
    schedule.run_here = run_in_pool


def _end_with(parent: int) -> None:
    """End this process soon after its parent has."""

    multiprocessing.set_start_method("fork", force=True)  # readers of files share what is decoded
    SharedFiles().install()

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class NotConcludedError(Exception):
    """All runs of a comparison are there, and nothing is concluded from them."""


def train_alone() -> None:
    """Let comparisons begun from here on end by `NotConcludedError` with their last run; called again they conclude.

    Conclusions are an affair of the processor, while a GPU is waited for.
    """
    module = importlib.import_module("saccade.comparison.compare")

    def end(*_: Any) -> None:
        raise NotConcludedError

    module._doubts = end  # type: ignore[attr-defined]


def leave_out_probes() -> None:
    """Let comparisons begun from here on conclude without their own short trainings at other learning rates."""
    module = importlib.import_module("saccade.comparison.compare")
    module.Probes.warn = lambda *_, **__: []  # type: ignore[attr-defined]


def _refuse_to_time(*_: Any, **__: Any) -> Pace:
    raise RuntimeError("not timed beforehand")


def _train_and_clear(*given: Any, **more: Any) -> Outcome:
    outcome = train_run(*given, **more)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return outcome


class SharedFiles:
    """Encoded files of the first run, given to those after it that read the same samples."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], Any] = {}
        self.read, self.batches = EncodedFeed._read, Validation.batches

    def install(self) -> None:
        """Put this in the place of reading."""
        shared = self

        def read(feed: EncodedFeed) -> EncodedSamples:
            return shared.read_training(feed)

        def batches(validation: Validation) -> Iterator[Batch]:
            return shared.read_validation(validation)

        EncodedFeed._read = read  # type: ignore[method-assign]
        Validation.batches = batches  # type: ignore[method-assign]

    def read_training(self, feed: EncodedFeed) -> EncodedSamples:
        """Read training files, or take those that were."""
        key = ("train", feed.source.fingerprint(), repr(feed.encode), str(feed.place))
        if key not in self.kept:
            self.kept[key] = self.read(feed)
        return self.kept[key]

    def read_validation(self, validation: Validation) -> Iterator[Batch]:
        """Yield validation batches, of files that were read if there are some."""
        if validation.columns is None and not validation.kept:
            reading: Any = validation.loader.dataset
            key = ("val", validation.source.fingerprint(), repr(reading.encode), validation.batch_size)
            validation.kept = list(self.kept.get(key, []))
            yield from self.batches(validation)
            if validation.kept and not validation.bad:
                self.kept[key] = validation.kept
            return
        yield from self.batches(validation)
