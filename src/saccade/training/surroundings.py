"""What PyTorch keeps for a whole process: set for a run, which then gives the same bits anywhere, and put back."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ..config import TrainConfig


@contextmanager
def surroundings(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Set what PyTorch keeps for a whole process, and put it back."""
    threads, matmul, dtype = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()
    benchmark, onednn = torch.backends.cudnn.benchmark, bool(_onednn().enabled)
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []), _room_to_compile(config):
        try:
            if config.engine.threads is not None:
                torch.set_num_threads(config.engine.threads)
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("high" if gpu else "highest")
            torch.backends.cudnn.benchmark = gpu or benchmark
            # Hopper: its gradient has NaN where 64, 192 ... tokens meet logits below -88 (pytorch/pytorch#196678).
            torch.backends.cuda.enable_cudnn_sdp(False)
            turn_onednn_on()
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.benchmark = benchmark
            torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
            _onednn().enabled = onednn


def turn_onednn_on() -> None:
    """Let oneDNN compute on the CPU, as it does in a process that has just begun.

    PyTorch turns it off for the rest of the process when a product in bfloat16 fails in it, as on a CPU without such
    instructions, and sums are then made in another order: what a step gives would depend on what was computed before.
    """
    _onednn().enabled = True


def _onednn() -> Any:
    return torch.backends.mkldnn


def _room_to_compile(config: TrainConfig) -> Any:
    """Let the compiler make a version of a block for each rate of drop path."""
    if config.engine.compile is False or (config.engine.compile is None and not torch.cuda.is_available()):
        return nullcontext()
    from torch._dynamo import config as compiler  # takes a while to import

    return compiler.patch(recompile_limit=64)
