"""Replay of a whole training step as one CUDA graph: the host's work per step shrinks to a few copies."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Replay:
    """A step that runs as it is a few times, is then captured, and replayed from there on.

    Args:
        step: changes tensors in place, always the same ones, without waiting for the device; inputs keep shapes.
        warmup: steps before the capture, in which compilers and libraries settle.
    """

    def __init__(self, step: Callable[..., None], *, warmup: int = 4) -> None:
        self.step, self.left = step, warmup
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []

    def __call__(self, inputs: Sequence[Tensor]) -> None:
        """Run one step on the inputs."""
        if self.graph is None:
            self.inputs = [tensor.clone() for tensor in inputs]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            if self.left > 0:
                self.left -= 1
                with torch.cuda.stream(stream):
                    self.step(*self.inputs)
                torch.cuda.current_stream().wait_stream(stream)
                return
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step(*self.inputs)
            self.graph = graph
        for place, tensor in zip(self.inputs, inputs, strict=True):
            place.copy_(tensor, non_blocking=True)
        self.graph.replay()
