"""Estimate a run's duration from a few timed steps."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..data.cache import EncodedFeed, Memory
from ..data.feed import batch_length, slice_batch
from ..data.image import BadSample
from ..data.open import Data
from ..data.source import Stream
from ..data.validation import Validation
from ..settings import TrainConfig, overlay
from ..settings.sizes import steps_of_epoch
from ..support.wording import count_of
from ..tasks.opening import TaskChoice
from .defaults import FORWARD
from .parallel import Alone
from .resolve import resolve
from .setup import TrainingParts, assemble, keeps_encoded, limit_samples
from .step import Step
from .validate import validate

PROBED = {"cpu": 2, "cuda": 8}  # timed steps
WARM = {"cpu": 1, "cuda": 8}  # warm-up steps; on a GPU these include capturing the CUDA graph
PROBED_SAMPLES = {"cpu": 64, "cuda": 256}  # most validation samples to time
IN_MEMORY = 4096  # likewise on a GPU with samples in memory
PROBE_SAMPLES, SLOW_BATCH = 16, 2.0  # batches slower than SLOW_BATCH seconds are timed once, by PROBE_SAMPLES samples


@dataclass(frozen=True)
class Pace:
    """Durations of a run's parts, in seconds."""

    startup: float  # before the first step and after the last one, in total
    step: float  # one training step
    validation: float  # one validation
    steps: int  # steps of an epoch
    every: int = 1  # epochs between validations
    how: str = ""  # how the numbers were obtained
    took: float = 0.0  # duration of the measurement
    reading: float = 0.0  # part of `startup` for reading cached samples, which later runs save
    parameters: int = 0  # of the model
    activations: int = 0  # bytes kept for the backward pass of a step, on a CPU
    kernels: tuple[str, ...] = ()  # that ran

    def seconds(self, epochs: int) -> float:
        """Return the duration of a run, including its final validation."""
        validations = epochs // self.every + (epochs % self.every > 0) + 1
        return self.startup + epochs * self.steps * self.step + validations * self.validation

    def most_epochs(self, seconds: float, most: int) -> int:
        """Return the number of epochs that fit into a time, at most `most`; 0 if not even one does."""
        fitting, beyond = 0, most + 1
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            fitting, beyond = (middle, beyond) if self.seconds(middle) <= seconds else (fitting, middle)
        return fitting


def measure_pace(config: TrainConfig, choice: TaskChoice, data: Data, device: torch.device, *, parts: int = 1) -> Pace:
    """Time a few steps and some validation samples of one of `parts` processes; nothing is kept."""
    started = time.monotonic()
    config, spec = resolve(config, choice, data, device)
    whole = config.optim.batch_size  # of all processes
    config = overlay(config, {"optim.batch_size": max(whole // parts, 1)})
    few, warm = (steps.get(device.type, steps["cpu"]) for steps in (PROBED, WARM))
    batch_size = config.optim.batch_size
    train = limit_samples(data.train, config.data.train_limit)
    length = train.length or batch_size if isinstance(train, Stream) else len(train)
    probed = overlay(config, {"data.train_limit": None, "data.bad_limit": 1.0})  # a few samples may all be bad
    gpu = device.type == "cuda"
    files = not isinstance(train, Stream) and train.array() is None
    kept = files and keeps_encoded(config, spec, length, world=Alone(), device=device)
    if files and not kept and config.augment.crop != "resized":
        probed = overlay(probed, {"data.resident": "never"})  # like the whole dataset, of which a few samples are used
    most = PROBED_SAMPLES.get(device.type, 64) if data.val.array() is None or not gpu else IN_MEMORY
    some = min(len(data.val), most)
    short = replace(data, train=train, val=data.val.subset(range(some)), memory=Memory())
    batches = few + warm if gpu and not kept else 1
    taken = min(length, batches * batch_size)
    if not isinstance(train, Stream):
        short = replace(short, train=train.subset(range(taken)))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself reports unreadable samples
        if kept and not isinstance(short.train, Stream):
            with suppress(BadSample):
                short.train.sample(0)  # loads the decoder
        made = assemble(probed, choice, short, spec, world=Alone(), device=device)
        startup, reading = time.monotonic() - started, 0.0
        try:
            step = Step(probed, made, world=Alone(), device=device)
            found = _time_steps(step, few, warm)
            if found.whole:
                reading = _time(made.validation.ready, device) * len(data.val) / max(some, 1)
                asked = _fill(made.validation, len(data.val)) if gpu else some
                for _ in range(1 + gpu):  # the first pass loads GPU kernels
                    validation = _time(lambda: _validate(made), device) * len(data.val) / max(asked, 1)
            else:
                validation = FORWARD * found.step * len(data.val) / batch_size
        finally:
            made.feed.close()
            made.validation.close()
    if isinstance(made.feed, EncodedFeed):  # all samples are read before the first step
        reading += found.reading * length / max(taken, 1)
    how = f"timed over {count_of(found.times, 'step')} of {count_of(found.size, 'sample')} after warm-up"
    took, every = time.monotonic() - started, config.keep.evaluate_every
    return Pace(
        startup + reading,
        found.step,
        validation,
        steps_of_epoch(length, whole),
        every,
        how,
        took=took,
        reading=reading,
        parameters=sum(one.numel() for one in made.task.model.parameters()),
        activations=found.activations // config.optim.accumulate,
        kernels=step.guard.names,
    )


class _Timed(NamedTuple):
    """Measured: reading the first batch; a step, its samples, repeats, whether it was full, bytes of activations."""

    reading: float
    step: float
    size: int
    times: int
    whole: bool
    activations: int


def _fill(validation: Validation, samples: int) -> int:
    """Repeat the batch to the run's batch size, since small batches do not fill a GPU; return the size."""
    read = len(validation)
    if len(validation.kept) != 1:
        return read
    times = max(min(validation.batch_size, samples) // max(read, 1), 1)
    validation.kept = [{name: torch.cat([part] * times) for name, part in validation.kept[0].items()}]
    return read * times


def _validate(made: TrainingParts) -> None:
    validate(made.task, made.validation, made.feed.expanding, Alone())


def _time(work: Callable[[], object], device: torch.device) -> float:
    started = time.monotonic()
    work()
    _wait(device)
    return time.monotonic() - started


def _time_steps(step: Step, few: int, warm: int) -> _Timed:
    """Time steps of whole batches or, if these are slow, one of a few samples."""
    step.task.train()
    started = time.monotonic()
    batches = _endless(step)
    first = next(batches)
    reading, batch_size = time.monotonic() - started, batch_length(first)
    probed = min(batch_size, PROBE_SAMPLES) if step.device.type == "cpu" else batch_size
    started = time.monotonic()
    with _kept_bytes(step) as kept:
        step._train_step(slice_batch(first, slice(probed)), strong=True)
    # The first step on a GPU mostly loads libraries.
    quick = step.device.type == "cuda" or (time.monotonic() - started) * batch_size / probed < SLOW_BATCH
    size = batch_size if quick else probed
    whole = size == batch_size
    warm, count = (warm, few) if quick else (0, 1)
    for number in range(warm + count):
        if number == warm:
            _wait(step.device)
            started = time.monotonic()
        batch = next(batches)
        step._train_step(batch if whole else slice_batch(batch, slice(size)), strong=True)
    _wait(step.device)
    seconds = (time.monotonic() - started) / count * batch_size / size
    return _Timed(reading, seconds, size, count, whole, sum(kept.values()) * batch_size // probed)


@contextmanager
def _kept_bytes(step: Step) -> Iterator[dict[int, int]]:
    """Collect the bytes of what autograd keeps, by address, without parameters; of a compiled step, nothing."""
    found: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in step.task.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor

    if step.device.type != "cpu" or step.config.engine.compile:
        yield found
        return
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def _endless(step: Step) -> Any:
    epoch = 0
    while True:
        yield from step.feed.epoch(epoch)
        epoch += 1


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
