"""Time the runs of arms in a worker process, while this process builds the arms."""

import math
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from ...settings import TrainConfig, overlay
from ...settings.decisions import decide
from ...settings.facts import Facts
from ...support.durations import BudgetError
from ...training.facts import machine_facts
from ...training.loop import Interrupted
from ...training.pace import Pace
from ..run.processes import Crew, time_probe
from ..run.worker import pace_of
from .arms import changed
from .plan import Note
from .snapshot import ArmSnapshot, DataCache

COMPILED = 0.6  # of a step's time uncompiled, where five networks had 0.42 to 0.50 on an H200; what takes longer is cut
FIRST_COMPILED, KIND_COMPILED = 10.0, 10.0  # seconds, and for each kind of blocks; four of glnet_nano took 51 in all
WHOLE_COMPILED = 4  # kinds that a model without repeated blocks counts as: it is compiled in one piece
SLOWER = 1.5  # times as long as the first arm, that others may take where they are not timed
MORE = 1.1  # times the operations of another arm, up to which one is taken to be as fast
CHEAP = ("model.plugins", "model.drop_path", "optim.lr", "optim.weight_decay", "optim.clip", "loss.smoothing")


class Timing:
    """Times a few steps of each arm.

    Args:
        crew: whose first process does it; without any, this one.
        cache: samples that are open here.
        gpu: whether runs go to one.
        done: returns the finished runs of an arm, which tell how long others take.

    Attributes:
        known: how long runs of each arm take.
        reading: seconds for samples that every run but the first finds in memory.
        reads_once: whether there are such samples.
        beside: runs that share a GPU.
        notes: arms that could not be timed.
    """

    def __init__(self, crew: Crew, cache: DataCache, *, gpu: bool, done: Callable[[str], list[Path]]) -> None:
        self.crew, self.cache, self.gpu, self.done = crew, cache, gpu, done
        self.known: dict[str, Pace] = {}
        self.reading, self.reads_once, self.beside = 0.0, False, 1
        self.notes: list[Note] = []
        self._begun: dict[str, Future[Pace]] = {}

    def begin(self, name: str, config: TrainConfig) -> None:
        """Let the process start with the arm that is needed first."""
        if self.crew.workers:
            pool = ThreadPoolExecutor(1)
            self._begun[name] = pool.submit(self._time, config)
            pool.shutdown(wait=False)

    def end(self) -> None:
        """Wait until the process is free."""
        wait(self._begun.values())

    def paces(self, configs: Mapping[str, TrainConfig]) -> dict[str, Pace]:
        """Return the pace of arms' runs, from finished ones or from a few timed steps."""
        for name, config in configs.items():
            if name in self.known:
                continue
            done = [pace_of(path, config) for path in self.done(name)]
            pace = next((pace for pace in done if pace is not None), None)
            try:
                self.known[name] = pace or self.pace(name, config)
            except Interrupted:
                raise
            except Exception as error:  # it may well fail in the run itself, which is where that is reported
                self.notes.append(Note("untimed", f"{name} could not be timed: {error}", arm=name))
        return {name: self.known[name] for name in configs if name in self.known}

    def take_as_timed(
        self,
        configs: Mapping[str, TrainConfig],
        snapshots: Mapping[str, ArmSnapshot],
        fits: Callable[[Mapping[str, Pace]], bool],
    ) -> None:
        """Assume the first arm's pace for arms that add no compute, if all would still fit when much slower."""
        first, *others = configs
        pace = None if all(map(self.done, others)) else self.paces({first: configs[first]}).get(first)
        if pace is None:
            return
        slow = replace(pace, step=SLOWER * pace.step, validation=SLOWER * pace.validation)
        with suppress(BudgetError):
            if fits({name: slow if name in others else pace for name in configs}):
                alike = [name for name in others if as_fast(snapshots[first], snapshots[name])]
                self.known = {**{name: pace for name in alike if not self.done(name)}, **self.known}

    def pace(self, name: str, config: TrainConfig) -> Pace:
        """Return the pace of a run, by timing a few steps."""
        self.end()
        begun = self._begun.pop(name, None)
        pace = self._time(config) if begun is None else begun.result()
        if self.reads_once:
            self.reading, pace = max(self.reading, pace.reading), replace(pace, startup=pace.startup - pace.reading)
        how, factor = pace.how, float(self.beside)
        if self.compiles(config):
            how += (
                f", without compilation: compiled steps take about {1 - COMPILED:.0%} less time, after the time to "
                "compile"
            )
            factor *= COMPILED
        if self.beside > 1:
            how += f"; measured alone, though {self.beside} runs will share a GPU"
        return replace(pace, step=pace.step * factor, validation=pace.validation * self.beside, how=how)

    def _time(self, config: TrainConfig) -> Pace:
        """Time a few steps without compilation, which would take too long for planning."""
        timed = overlay(config, {"engine.compile": False}) if self.compiles(config) else config
        with tempfile.TemporaryDirectory() as folder:
            return time_probe(timed, self.crew, Path(folder), self.cache)

    def compiles(self, config: TrainConfig) -> bool:
        """Whether runs of these settings are compiled."""
        if not self.gpu or config.engine.compile is False:
            return False
        rules = self.cache.open(config)[0].kind.task_rules()  # a task may leave its models uncompiled
        facts = Facts(machine=machine_facts(torch.device("cuda")))
        return decide(config, facts, rules).engine.compile is not False

    def compiling(self, kinds: Mapping[str, frozenset[str]], configs: Mapping[str, TrainConfig]) -> float:
        """Return the estimated compilation time of all distinct kinds of blocks."""
        found = [kinds[name] for name, config in configs.items() if self.compiles(config)]
        count = len(frozenset().union(*found)) + WHOLE_COMPILED * sum(not one for one in found)
        return FIRST_COMPILED + KIND_COMPILED * count if found else 0.0


def as_fast(timed: ArmSnapshot, other: ArmSnapshot) -> bool:
    """Whether runs of another arm take about as long as those of one that was timed, by all that is known of them."""
    same = (timed.steps, timed.batch_size) == (other.steps, other.batch_size)
    cheap = set(changed(timed.config, other.config)) <= set(CHEAP)
    return same and cheap and (other.macs or math.inf) <= MORE * (timed.macs or 0)
