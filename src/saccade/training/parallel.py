"""Distributed training: communication between processes, DDP and FSDP."""

import atexit
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from ..runs.state import Processes, piece_of

SMALL_BLOCK = 10_000  # parameters; smaller blocks are not sharded separately


class World(Processes):
    """The processes of a run."""

    def wait(self) -> None:
        """Wait for all processes (barrier)."""

    def merge_from_ranks(self, found: dict[str, Any]) -> None:
        """Update a dictionary with those of all ranks, which all call this."""
        for other in self.gather(dict(found)):
            found.update(other)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values they have in the first process."""

    def any_of(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set on any rank, with one communication."""
        return list(flags)

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.any_of(flag)[0]


class Alone(World):
    """A single process."""


class TorchrunWorld(World):
    """Processes started by torchrun."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device

    def wait(self) -> None:
        """Wait for all processes (barrier)."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values they have in the first process."""
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def any_of(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set on any rank, with one communication."""
        any_flags = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(any_flags, dist.ReduceOp.MAX)
        return [bool(flag) for flag in any_flags.tolist()]


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the process group if started by torchrun."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Alone()
        return
    ours = not dist.is_initialized()
    if ours:
        _connect("nccl" if device.type == "cuda" else "gloo")
    try:
        yield TorchrunWorld(device)
    finally:
        if ours:
            dist.destroy_process_group()
            # Free connections while Python runs: their threads must not need the GIL at exit.
            atexit.register(gc.collect)


def _connect(backend: str) -> None:
    """Initialise the process group, without addresses of an earlier start.

    After a failure torchrun restarts processes with the same store, in which a process may read an address of a dead
    one. On one host a prefix with the restart count separates them; on several, hosts may count differently, and
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun use a new store each time.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        dist.init_process_group(backend)
        return
    store, rank, size = next(rendezvous("env://"))
    store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


def local_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one, a different one for each process."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise ValueError(f"device {name!r} was given; choose cpu, cuda, cuda:1, mps or auto")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name!r} was given, but PyTorch finds no GPU on this machine; use --device cpu")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def wrap_ddp(task: nn.Module, world: World, *, device: torch.device, probe: Callable[[nn.Module], None]) -> nn.Module:
    """Wrap a task in DistributedDataParallel.

    Args:
        task: the task, identical in every process.
        probe: runs the task forward and backward once on a few images, to find parameters without gradient;
            `find_unused_parameters` walks the graph in every step, so it is enabled only if there are some.
    """
    from torch.nn.parallel import DistributedDataParallel

    unused = world.any_rank(_has_unused_parameters(task, probe, device))
    devices = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        task, device_ids=devices, find_unused_parameters=unused, gradient_as_bucket_view=True
    )


def _has_unused_parameters(task: nn.Module, probe: Callable[[nn.Module], None], device: torch.device) -> bool:
    """Whether a step leaves a trainable parameter without gradient; the task is not changed."""
    kept = [buffer.clone() for buffer in task.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        probe(task)
    unused = any(p.grad is None for p in task.parameters() if p.requires_grad)
    task.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, value in zip(task.buffers(), kept, strict=True):
            buffer.copy_(value)
    return unused


def shard(task: nn.Module, device: torch.device, size: int) -> None:
    """Shard a task's parameters in place, block by block (FSDP2)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    scalars = [name for name, p in task.named_parameters() if p.dim() == 0]
    if scalars:
        raise ValueError(
            f"engine.parallel=fsdp was given, but {', '.join(scalars[:3])} are scalar parameters, which cannot be "
            "sharded; use engine.parallel=ddp"
        )
    mesh = init_device_mesh(device.type, (size,))
    # Inner blocks first: the rest of a block then belongs to the enclosing one. Weights are resharded after every
    # forward pass, so that no stale full copy survives an update.
    for module in reversed(list(task.modules())):
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for block in module:
                small = sum(p.numel() for p in block.parameters()) < SMALL_BLOCK
                if not small and not isinstance(block, nn.ModuleList | nn.Sequential) and not _is_sharded(block):
                    fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(task, mesh=mesh, reshard_after_forward=True)


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "set_reshard_after_forward")


@contextmanager
def summon_full_params(module: nn.Module) -> Iterator[None]:
    """Hold full weights of a sharded module in every process within a context."""
    sharded: list[Any] = [part for part in module.modules() if _is_sharded(part)]
    for part in sharded:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in sharded:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def fill(tensor: Tensor, full: Tensor) -> None:
    """Copy a full tensor into one that may be sharded."""
    local, _, begin = piece_of(tensor)
    with torch.no_grad():
        local.copy_(full if local is tensor else full[begin : begin + local.shape[0]])


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor of one that may be sharded; all processes call this."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def full_state_dict(module: nn.Module) -> Mapping[str, Tensor]:
    """Return a module's state dict with full tensors; all processes call this."""
    return {name: whole(value.detach()) for name, value in module.state_dict().items()}
