"""Steps as CUDA graphs, with a fake device that captures and replays."""

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from saccade.training.engine import Replay

BROKEN = "operation not permitted when stream is capturing"


class Generator:
    """One that waits for the end of a capture until it gets a new state."""

    waits = True

    def clone_state(self) -> "Generator":
        return Generator()

    def graphsafe_set_state(self, state: "Generator") -> None:
        assert state is not self
        self.waits = False


class Device:
    """What `torch.cuda` offers to a replayed step; work is only noted during a capture."""

    def __init__(self, *, broken: str = "") -> None:
        self.broken, self.capturing, self.replay = broken, False, Replay(self.step, warmup=2)
        self.seen: list[float] = []
        self.captures, self.stream_now = 0, "usual"
        self.default_generators = [Generator()]

    def step(self, value: Tensor) -> None:
        if self.capturing and self.broken:
            raise RuntimeError(self.broken)
        if not self.capturing:
            self.seen.append(float(value))

    def CUDAGraph(self) -> Any:  # noqa: N802
        class Graph:
            def replay(_) -> None:  # noqa: N805
                self.step(*self.replay.inputs)

        return Graph()

    def graph(self, _: Any) -> Any:
        device = self

        class Capture:
            def __enter__(self) -> None:
                device.capturing, device.stream_now = True, "capture"
                device.captures += 1

            def __exit__(self, *_: object) -> None:
                device.capturing = False
                if device.broken:
                    raise RuntimeError("an error of the end hides the first one")
                device.stream_now = "usual"

        return Capture()

    def Stream(self) -> Any:  # noqa: N802
        return type("Stream", (), {"wait_stream": lambda *_: None})()

    def current_stream(self) -> Any:
        return self.Stream()

    def stream(self, _: Any) -> Any:
        return nullcontext()

    def set_stream(self, _: Any) -> None:
        self.stream_now = "usual"


@pytest.mark.parametrize("broken", ["", BROKEN])
def test_every_batch_makes_one_step_whether_or_not_steps_can_be_captured(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(broken=broken)
    for name in ("CUDAGraph", "graph", "Stream", "current_stream", "stream", "set_stream", "default_generators"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(6):
            device.replay([torch.tensor(float(number))])
    assert device.seen == [0, 1, 2, 3, 4, 5]
    assert device.captures == 1
    assert device.stream_now == "usual"
    assert device.default_generators[0].waits is (broken == "")
    assert [BROKEN in str(one.message) and "engine.graphs=false" in str(one.message) for one in told] == (
        [True] if broken else []
    )


def test_a_full_device_is_no_reason_to_run_steps_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    for name in ("CUDAGraph", "graph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))

    def fill(_: Tensor) -> None:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        Replay(fill, warmup=0)([torch.tensor(0.0)])
