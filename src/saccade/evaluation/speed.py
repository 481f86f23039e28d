"""Time a model against a peer in one run, turn by turn, so that both meet the same machine."""

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
from torch import Tensor, nn

from ..loading import open_model
from ..models._identify import require_model
from ..pretrained import PREFIX, find_specification

MODES = ("inference", "training")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """The circumstances of one measurement."""

    mode: str = "inference"
    compiled: bool = False
    batch_size: int = 8
    img_size: int = 224
    device: str = "cpu"
    precision: str = "float32"
    channels_last: bool = False
    rounds: int = 5
    seconds: float = 1.0


@dataclass(frozen=True)
class Timing:
    """What one model did in one setting."""

    images_per_second: float  # median over rounds
    spread: float  # (largest - smallest) / median of the rounds
    peak_mib: float  # the most memory tensors took during a step, beyond what was held before it


def race(names: list[str], setting: Setting) -> dict[str, Timing]:
    """Time several models in the same setting, one round each in turn.

    Returns:
        A timing for each name, in the order given.
    """
    if setting.mode not in MODES:
        raise ValueError(f"mode {setting.mode!r} was given; allowed are {', '.join(MODES)}")
    if setting.precision not in PRECISIONS:
        raise ValueError(f"precision {setting.precision!r} was given; allowed are {', '.join(PRECISIONS)}")
    steps = {name: make_step(name, setting) for name in names}
    peaks = {name: peak_memory(step, setting.device) for name, step in steps.items()}  # warms up as well
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
        )
        for name, values in rates.items()
    }


def as_markdown(results: list[tuple[Setting, dict[str, Timing]]]) -> str:
    """Return a table of races; every ratio is against the last model of its race, the peer.

    Memory is what a step takes at its highest beyond what is held before it: weights, and the optimizer's state.
    """
    lines = [
        "| mode | engine | batch | size | model | images/s | spread | ratio | peak MiB, weights apart | ratio |",
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
    return "\n".join(lines)


def make_step(name: str, setting: Setting) -> Callable[[], None]:
    """Return a function that runs one inference or training step of a freshly built model on random images."""
    device = torch.device(setting.device)
    model: Any = create_for(name, setting.img_size).to(device)
    channels = getattr(model, "in_chans", None) or 3
    images = torch.randn(setting.batch_size, channels, setting.img_size, setting.img_size, device=device)
    labels = torch.randint(model.num_classes, (setting.batch_size,), device=device)
    if setting.channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    model.train(setting.mode == "training")
    run: Callable[[Tensor], Tensor] = torch.compile(model) if setting.compiled else model

    def autocast() -> torch.autocast | nullcontext[None]:
        dtype = PRECISIONS[setting.precision]
        return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype)

    def infer() -> None:
        with torch.inference_mode(), autocast():
            run(images)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if setting.mode == "training" else None

    def train() -> None:
        assert optimizer is not None
        with autocast():
            loss = F.cross_entropy(run(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train if setting.mode == "training" else infer


def peak_memory(step: Callable[[], None], device: str) -> float:
    """Return the MiB a step takes at its highest beyond what is held before it."""
    step()  # the first call also allocates what stays: optimizer state, compiled code, workspaces
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
    """Return the largest rise, in MiB, of what PyTorch's CPU allocator holds during a step."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages are of no use here
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text(errors="replace"))["traceEvents"]
    records = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    return max(itertools.accumulate((size for _, size in records), initial=0)) / 2**20


def find_raced(target: str) -> str:
    """Return what `race` can time: a model's full name, or what `open_model` opens."""
    named = find_specification(target)
    if named is None:
        return target if Path(target).expanduser().exists() else require_model(target)
    return named if find_specification(named) is not None else f"{PREFIX}{named}"  # a path may have the full name


def create_for(name: str, img_size: int) -> nn.Module:
    """Build a model for an image size, whether or not its constructor asks for one; open one that has weights."""
    if "@" in name or Path(name).expanduser().exists():
        return open_model(name).model
    name = name.removeprefix(PREFIX)
    try:
        return timm.create_model(name, img_size=img_size)
    except TypeError:
        return timm.create_model(name)


def repeats_in(step: Callable[[], None], setting: Setting) -> int:
    """Return how many steps make a round of the setting's length."""
    return max(1, round(setting.seconds / max(seconds_of(step, 1, setting.device), 1e-6)))


def seconds_of(step: Callable[[], None], repeats: int, device: str) -> float:
    """Time steps, waiting for the device to finish."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
