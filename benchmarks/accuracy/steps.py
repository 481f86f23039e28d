"""What benchmarks of several tasks share: training steps on the clock, sides in turns, and what runs ended with."""

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from saccade.runs.run import Run
from saccade.tasks.opening import choose_task, open_samples
from saccade.training.console import Console
from saccade.training.engine import torch_settings
from saccade.training.loop import Loop
from saccade.training.parallel import Alone
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.setup import assemble


class Side(Protocol):
    """One that is timed."""

    def epoch(self, number: int) -> int:
        """Train for an epoch and return how many images that were."""


class Ours:
    """The training loop of saccade with all it does: crops at random scales, colours, forward, backward, AdamW.

    Args:
        task: its name.
        given: settings by dotted name.
        run: folder of the run.
        device: to train on.
        own_frame: count pixels of the original images, not of the model's square as earlier versions did.
    """

    def __init__(
        self, task: str, given: Mapping[str, Any], run: Path, device: torch.device, *, own_frame: bool = True
    ) -> None:
        given = {"task": task, "engine.device": str(device), "keep.ema": None, "keep.every_seconds": 1e9, **given}
        choice, opened = open_samples(task, configure(None, given).data)
        config, spec = resolve(configure(None, given), choose_task(task), opened, device)
        if not own_frame:
            spec.extra.pop("frame", None)
        parts = assemble(config, choice, opened, spec, world=Alone(), device=device)
        self.loop = Loop(
            config, Run.create(run, config), parts, world=Alone(), device=device, console=Console(quiet=True)
        )

    def epoch(self, number: int) -> int:
        """Train for an epoch and return how many images that were."""
        self.loop.epoch, self.loop.step = number, number * self.loop.feed.steps
        with torch_settings(self.loop.config, self.loop.device):
            self.loop._train_epoch()
        return self.loop.feed.steps * self.loop.config.optim.batch_size


def time_in_turns(sides: Mapping[str, Side], *, rounds: int, gpu: bool, gate: Path | None = None) -> dict[str, Any]:
    """Return images a second of each side, the median over rounds, and those of every round.

    Args:
        sides: what is timed, by name.
        rounds: of all sides, after one that warms up.
        gpu: whether there is a GPU to wait for.
        gate: a file that is waited for after the warm-up, so that the GPU is free when time is taken.
    """
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, one in sides.items():
            begun = time.perf_counter()
            images = one.epoch(number)
            if gpu:
                torch.cuda.synchronize()
            seconds = time.perf_counter() - begun
            if number:
                speeds[name].append(images / seconds)
            print(name, number, round(seconds, 2), "s", flush=True)
        while number == 0 and gate is not None and not gate.exists():
            time.sleep(0.2)
    return {
        "images_per_second": {name: round(statistics.median(values), 1) for name, values in speeds.items()},
        "rounds": {name: [round(value, 1) for value in values] for name, values in speeds.items()},
        "device": torch.cuda.get_device_name() if gpu else "cpu",
    }


def ended_with(runs: Path) -> dict[str, dict[str, float]]:
    """Return the numbers of every finished run in a folder of them, by the run's name."""
    found = {}
    for file in sorted(runs.rglob("summary.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        name = file.parent.relative_to(runs).as_posix()
        found[name] = {key: round(value, 5) for key, value in told.items() if isinstance(value, float)}
    return found
