"""Kinds of blocks compiled side by side: before the first step, by a process each, into the cache that the step reads.

A step compiles one kind after another, in one thread of Python. A process that gets one block and what it is called
with writes the same code to the compiler's cache on disk, where the step finds it. Nothing else comes back, so that a
process that fails or takes too long costs its kind no more than what compiling it took before.
"""

import copy
import hashlib
import io
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..config import TrainConfig
from ..spawning import KNOWN, PLACE, Helper, cores, start_helper, take_helper
from .engine import compile_block, describe_kind, repeated_blocks, torch_settings

LIMIT = 300  # seconds for all processes together, after which they are ended
FEWEST_CORES, FEWEST_KINDS = 4, 3  # below, too little is gained over the seconds that a process takes to begin
MOST = 8  # processes, each of which takes some of the GPU's memory
_seen: set[str] = set()  # what this process has compiled, or had compiled, before


@dataclass(frozen=True)
class Layout:
    """All that a compiler looks at in a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    stored: int  # bytes
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, value: Tensor) -> "Layout":
        """Return how a tensor lies."""
        offset, stored = int(value.storage_offset()), value.untyped_storage().nbytes()
        return cls(tuple(value.shape), value.stride(), offset, stored, value.dtype, value.device, value.requires_grad)

    def fill(self) -> Tensor:
        """Return zeros that lie so."""
        storage = torch.zeros(self.stored, dtype=torch.uint8, device=self.device).untyped_storage()
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self.offset, self.shape, self.stride).requires_grad_(self.requires_grad)


class Call(NamedTuple):
    """One call of a block, as a process repeats it."""

    place: str  # of the compiler's cache
    config: TrainConfig
    device: torch.device
    threads: int
    block: nn.Module
    given: Any  # positional and named arguments, with layouts in place of tensors
    autocast: bool
    dtype: torch.dtype  # of autocast, also where that is off
    grad: bool


def jobs_of(config: TrainConfig, device: torch.device) -> int:
    """Return how many processes may compile side by side; one is none beside this."""
    engine = config.engine
    if not engine.compile or engine.grad_checkpointing or os.name != "posix":  # recomputed blocks are called otherwise
        return 1
    if engine.compile_jobs is not None:
        return engine.compile_jobs
    return min(cores(), MOST) if device.type == "cuda" and cores() >= FEWEST_CORES else 1


def compile_ahead(
    task: nn.Module,
    batch: Any,
    draw: dict[str, Tensor],
    *,
    config: TrainConfig,
    device: torch.device,
    jobs: int,
) -> int:
    """Compile the kinds of blocks that `task(batch, **draw)` calls side by side, unless this or another process did.

    Returns:
        How many processes were to compile one.
    """
    kinds = sorted(set(map(describe_kind, repeated_blocks(task))))
    fewest = 2 if config.engine.compile_jobs else FEWEST_KINDS
    if jobs < 2 or len(kinds) < fewest or not _keeps():
        return 0
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    known = Path(cache_dir()) / KNOWN  # empty files, named by what is in the cache
    whole = _name(config, device, kinds, _layouts((batch, draw)))
    if _is_known(known, whole):
        return 0
    calls: dict[str, io.BytesIO] = {}
    try:
        known.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(known / "lock", timeout=0):
            calls = _calls(task, batch, draw, known, config=config, device=device)
            if len(calls) >= fewest:
                _run(list(calls.values()), jobs)
    except Timeout:  # a run beside this one is at it: no more processes
        pass
    except Exception as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"kinds of blocks are compiled one after another, which is slower: {type(error).__name__} ({reason}); "
            "engine.compile_jobs=1 leaves the attempt out",
            stacklevel=2,
        )
    for name in (*calls, whole):  # what was not made now will be by the step
        _seen.add(name)
        with suppress(OSError):
            (known / name).touch()
    return len(calls) if len(calls) >= fewest else 0


def _calls(
    task: nn.Module,
    batch: Any,
    draw: dict[str, Tensor],
    known: Path,
    *,
    config: TrainConfig,
    device: torch.device,
) -> dict[str, io.BytesIO]:
    """Run a copy of the task as it was written and return the first call of every kind that is not known, as a file.

    The files are in memory: nobody else can write to what is about to be run.
    """
    calls: dict[str, io.BytesIO] = {}

    def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        state = (*autocast, torch.is_grad_enabled())
        flags = [p.requires_grad for p in block.parameters()], [module.training for module in block.modules()]
        name = _name(config, device, describe_kind(block), _layouts((args, kwargs)), state, flags)
        if name not in calls and not _is_known(known, name):
            calls[name] = io.BytesIO()
            given = _layouts((args, kwargs), all_of_them=False)
            torch.save(
                Call(str(known.parent), config, device, torch.get_num_threads(), block, given, *state), calls[name]
            )
        return block._call_impl(*args, **kwargs)

    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        copied = copy.deepcopy(task)
        for block in repeated_blocks(copied):
            block._compiled_call_impl = partial(call, block)
        copied(batch, **draw)
    del copied, block
    torch.clear_autocast_cache()
    if gpu:
        torch.cuda.empty_cache()  # processes need it now
    return calls


def _layouts(values: Any, *, all_of_them: bool = True) -> Any:
    """Return layouts in place of tensors, or of real numbers only: others may be places, which have to be right."""

    def layout(value: Any) -> Any:
        return Layout.of(value) if isinstance(value, Tensor) and (all_of_them or value.is_floating_point()) else value

    return tree_map(layout, values)


def _run(files: list[io.BytesIO], jobs: int) -> None:
    """Give each file to a process, some at a time, and wait for all."""
    jobs = min(jobs, len(files))
    until = time.monotonic() + LIMIT
    left, running, failed = list(files), list[Helper](), list[str]()
    try:
        while (left or running) and time.monotonic() < until:
            while left and len(running) < jobs:
                running.append(take_helper() or start_helper(max(cores() // jobs, 1)))
                _tell(running[-1], left.pop(0).getvalue())
            failed += [_last_line(helper.errors) for helper in running if helper.process.poll()]
            for helper in [one for one in running if one.process.returncode is not None]:
                helper.end()
                running.remove(helper)
            time.sleep(0.02)
    finally:
        for helper in running:
            helper.end()
    if failed or running:
        why = failed[0] if failed else f"not within {LIMIT} s"
        raise RuntimeError(f"{len(failed) + len(running) + len(left)} of {len(files)} kinds: {why}")


def _tell(helper: Helper, text: bytes) -> None:
    """Write a call to a process, which may have to import before it reads."""

    def write() -> None:
        assert helper.process.stdin is not None
        with suppress(OSError, ValueError):  # it ended: that is told where it is waited for
            helper.process.stdin.write(len(text).to_bytes(8, "big") + text)
            helper.process.stdin.flush()

    threading.Thread(target=write, daemon=True).start()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    return (file.read().decode(errors="replace").strip().splitlines() or ["no message"])[-1][:200]


def work() -> None:
    """Compile the one kind of block that this process is told: forward and backward, into the cache."""
    import torch._inductor.compile_fx  # before it is told, which may take until the other has imported, too

    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    text = sys.stdin.buffer.read(size)
    if not text or len(text) < size:
        return  # it was not needed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    call: Call = torch.load(io.BytesIO(text), weights_only=False)  # from the process that began this one
    os.environ[PLACE] = call.place
    if call.device.type == "cuda":
        torch.cuda.set_device(call.device)
        _leave_kernels_out()
    with torch_settings(call.config, call.device):
        torch.set_num_threads(call.threads)
        args, kwargs = tree_map(lambda one: one.fill() if isinstance(one, Layout) else one, call.given)
        autocast = torch.autocast(call.device.type, call.dtype, enabled=call.autocast)
        compile_block(call.block)
        with torch.set_grad_enabled(call.grad), autocast:
            results = [one for one in tree_leaves(call.block(*args, **kwargs)) if isinstance(one, Tensor)]
            results = [one for one in results if one.requires_grad]
            if results:
                torch.autograd.backward(results, [torch.zeros_like(one) for one in results])


def _leave_kernels_out() -> None:
    """Run none of the compiled kernels: others share the GPU, and they are chosen by the clock."""
    with suppress(ImportError, AttributeError):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        CachingAutotuner.run = lambda *_, **__: None  # type: ignore[method-assign]


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: it returns when the other end is gone
    os.killpg(0, signal.SIGKILL)


def _keeps() -> bool:
    """Whether the compiler keeps what it makes, for other processes too."""
    from torch._inductor import config as compiler

    return bool(getattr(compiler, "fx_graph_cache", False) and not getattr(compiler, "force_disable_caches", False))


def _name(config: TrainConfig, device: torch.device, *more: Any) -> str:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return hashlib.sha256(repr((torch.__version__, gpu, config.engine.precision, more)).encode()).hexdigest()


def _is_known(known: Path, name: str) -> bool:
    return name in _seen or (known / name).exists()
