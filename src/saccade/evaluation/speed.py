"""Benchmark models against each other in one process, taking turns."""

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn

from ..building.loading import open_model
from ..building.pretrained import PREFIX, find_specification
from ..kernels import Guard
from ..models._identify import require_model

MODES = ("inference", "training")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """Settings of a benchmark."""

    mode: str = "inference"
    compiled: bool = False
    batch_size: int = 8
    img_size: int = 224
    device: str = "cpu"
    precision: str = "float32"
    channels_last: bool = False
    kernels: str = "auto"  # names of `saccade kernels`
    rounds: int = 5
    seconds: float = 1.0


@dataclass(frozen=True)
class Timing:
    """Result of one model in one setting."""

    images_per_second: float  # median over rounds
    spread: float  # (largest - smallest) / median of the rounds
    peak_mib: float  # peak memory of a step, beyond what was allocated before it
    kernels: tuple[str, ...] = ()  # kernels that ran


def race(names: list[str], setting: Setting) -> dict[str, Timing]:
    """Time several models in the same setting, in alternating rounds.

    Returns:
        A timing for each name, in order.
    """
    if setting.mode not in MODES:
        raise ValueError(f"mode {setting.mode!r}: expected one of {', '.join(MODES)}")
    if setting.precision not in PRECISIONS:
        raise ValueError(f"precision {setting.precision!r}: expected one of {', '.join(PRECISIONS)}")
    steps = {name: TimedStep(name, setting) for name in names}
    peaks = {name: peak_memory(step, setting.device) for name, step in steps.items()}  # also the warm-up
    counts = {name: repeats_in(step, setting) for name, step in steps.items()}
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(setting.rounds):
        for name, step in steps.items():
            rates[name].append(setting.batch_size * counts[name] / seconds_of(step, counts[name], setting.device))
    return {
        name: Timing(
            images_per_second=statistics.median(values),
            spread=(max(values) - min(values)) / statistics.median(values),
            peak_mib=peaks[name],
            kernels=steps[name].guard.names,
        )
        for name, values in rates.items()
    }


def as_markdown(results: list[tuple[Setting, dict[str, Timing]]]) -> str:
    """Return a table of benchmarks; ratios are relative to the last model of each.

    Memory is a step's peak beyond what was allocated before it (weights, optimizer state). The kernels that ran are
    listed below the table.
    """
    lines = [
        "| mode | engine | batch | size | model | images/s | spread | ratio | peak MiB, without weights | ratio |",
        "| --- | --- | --: | --: | --- | --: | --: | --: | --: | --: |",
    ]
    for setting, timings in results:
        peer = list(timings.values())[-1]
        engine = setting.precision + " compiled" * setting.compiled + " nhwc" * setting.channels_last
        for name, timing in timings.items():
            speed = timing.images_per_second / peer.images_per_second
            memory = timing.peak_mib / peer.peak_mib
            lines.append(
                f"| {setting.mode} | {engine} | {setting.batch_size} | {setting.img_size} | {name} "
                f"| {timing.images_per_second:.3g} | {timing.spread:.0%} | {speed:.2f}x "
                f"| {timing.peak_mib:.0f} | {memory:.2f}x |"
            )
    kernels = {
        f"{name} {setting.mode}": ", ".join(timing.kernels)
        for setting, timings in results
        for name, timing in timings.items()
        if timing.kernels
    }
    lines += ["", *(f"Kernels of {what}: {names}." for what, names in kernels.items())] if kernels else []
    return "\n".join(lines)


class TimedStep:
    """An inference or training step of a new model on random images."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.setting, self.device = setting, torch.device(setting.device)
        model: Any = create_for(name, setting.img_size).to(self.device)
        channels, side = getattr(model, "in_chans", None) or 3, setting.img_size
        self.images = torch.randn(setting.batch_size, channels, side, side, device=self.device)
        self.labels = torch.randint(model.num_classes, (setting.batch_size,), device=self.device)
        if setting.channels_last:
            model = model.to(memory_format=torch.channels_last)
            self.images = self.images.to(memory_format=torch.channels_last)
        training = setting.mode == "training"
        self.model = model.train(training)
        self.guard = Guard(self.model, "train" if training else "infer", setting.kernels, renew=self._compile)
        self._compile()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if training else None

    def _compile(self) -> None:
        self.run: Any = torch.compile(self.model) if self.setting.compiled else self.model

    def __call__(self) -> None:
        """Run the step; kernels that fail are disabled."""
        self.guard.run(self._infer if self.optimizer is None else self._train)

    def _autocast(self) -> torch.autocast | nullcontext[None]:
        dtype = PRECISIONS[self.setting.precision]
        return nullcontext() if dtype is torch.float32 else torch.autocast(self.device.type, dtype)

    def _infer(self) -> None:
        with torch.inference_mode(), self._autocast():
            self.run(self.images)

    def _train(self) -> None:
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = F.cross_entropy(self.run(self.images).float(), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def peak_memory(step: Callable[[], None], device: str) -> float:
    """Return the peak memory of a step in MiB, beyond what was allocated before it."""
    step()  # the first call also allocates optimizer state, compiled code and workspaces
    step()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return _allocated_peak(step)


def _allocated_peak(step: Callable[[], None]) -> float:
    """Return the peak increase, in MiB, of PyTorch's CPU allocations during a step."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text(errors="replace"))["traceEvents"]
    records = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    return max(itertools.accumulate((size for _, size in records), initial=0)) / 2**20


def find_raced(target: str) -> str:
    """Return a target that `race` can time: a model's full name, or an argument of `open_model`."""
    named = find_specification(target)
    if named is None:
        return target if Path(target).expanduser().exists() else require_model(target)
    return named if find_specification(named) is not None else f"{PREFIX}{named}"  # a path may equal a full name


def create_for(name: str, img_size: int) -> nn.Module:
    """Build a model for an image size, whether or not its constructor takes one; open targets with weights."""
    if "@" in name or Path(name).expanduser().exists():
        return open_model(name).model
    name = name.removeprefix(PREFIX)
    try:
        return timm.create_model(name, img_size=img_size)
    except TypeError:
        return timm.create_model(name)


def repeats_in(step: Callable[[], None], setting: Setting) -> int:
    """Return the number of steps in a round of the setting's length."""
    return max(1, round(setting.seconds / max(seconds_of(step, 1, setting.device), 1e-6)))


def seconds_of(step: Callable[[], None], repeats: int, device: str) -> float:
    """Time steps, with device synchronisation."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
