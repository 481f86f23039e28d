"""How long a run takes, from a few of its steps."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..config import TrainConfig, overlay
from ..data.open import Data
from ..data.source import Stream
from ..runs import Run
from ..tasks.opening import TaskChoice
from .console import Console
from .loop import Loop
from .parallel import Alone
from .setup import assemble, resolve

PROBED = {"cpu": 2, "cuda": 20}  # steps of an epoch that is timed, of which two are run
PROBED_SAMPLES = 512  # validation samples


@dataclass(frozen=True)
class Pace:
    """How long a run of an arm takes, in seconds.

    Attributes:
        startup: before the first step and after the last one.
        step: of training.
        validation: all validation samples once.
        steps: of an epoch.
        every: epochs between validations.
        how: where the numbers come from.
        took: finding them out, where they were timed.
    """

    startup: float
    step: float
    validation: float
    steps: int
    every: int = 1
    how: str = ""
    took: float = 0.0

    def seconds(self, epochs: int) -> float:
        """Return how long a run takes; it validates once more at its end."""
        validations = epochs // self.every + (epochs % self.every > 0) + 1
        return self.startup + epochs * self.steps * self.step + validations * self.validation


def measure_pace(config: TrainConfig, choice: TaskChoice, data: Data, device: torch.device) -> Pace:
    """Time a few steps and some validation samples of a run, without keeping anything.

    Args:
        config: of the run.
        choice: its task.
        data: its samples.
        device: to run on.
    """
    begun = time.monotonic()
    few, batch_size = PROBED.get(device.type, 2), config.optim.batch_size
    settings = {"schedule.epochs": 2, "keep.evaluate_every": 1000, "schedule.patience": None, "data.train_limit": None}
    every, limit = config.keep.evaluate_every, config.data.train_limit
    length = data.train.length or batch_size if isinstance(data.train, Stream) else len(data.train)
    steps = max(min(length, limit or length) // batch_size, 1)
    config, spec = resolve(overlay(config, settings), choice, data, device)
    samples = len(data.val)
    short = replace(data, val=data.val.subset(range(min(samples, PROBED_SAMPLES))))
    if not isinstance(data.train, Stream):
        short = replace(short, train=data.train.subset(range(min(length, few * batch_size))))
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        parts = assemble(config, choice, short, spec, world=Alone(), device=device)
        parts.feed.steps = min(parts.feed.steps, few)
        run = Run.create(Path(folder) / "probe", config)
        loop = Loop(config, run, parts, world=Alone(), device=device, console=Console(quiet=True))
        try:
            loop.fit()
            validating = time.monotonic()
            loop.evaluate()
        finally:
            parts.feed.close()
        now = time.monotonic()
        record = run.metrics()[-1]
    step = record["seconds"] / parts.feed.steps
    validation = (now - validating) * samples / len(short.val)
    startup = max(validating - begun - 2 * record["seconds"], 0.0)
    how = f"timed over {parts.feed.steps} steps of {config.optim.batch_size} samples after as many to warm up"
    return Pace(startup, step, validation, steps, every, how, took=now - begun)
