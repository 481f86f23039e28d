"""One process or many: what a run needs to know about the others, and how its model is spread over them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class World:
    """The processes of a run."""

    rank: int
    size: int

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when all processes have come here."""

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, in the order of their ranks."""
        return [value]

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        return tensor

    def agree(self, flag: bool) -> bool:
        """Return whether any process says so."""
        return flag


class Alone(World):
    """A run of one process."""

    rank, size = 0, 1


class Together(World):
    """A run started by torchrun."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def wait(self) -> None:
        """Return when all processes have come here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, in the order of their ranks."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    def agree(self, flag: bool) -> bool:
        """Return whether any process says so."""
        return any(self.gather(flag))


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started, if it did."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Alone()
        return
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Together()
    finally:
        if ours:
            dist.destroy_process_group()


def local_device(name: str) -> torch.device:
    """Return the device a name stands for: "auto" is a GPU if there is one, and each process of a host takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} was asked for; give cpu, cuda, cuda:1, mps or auto") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name!r} was asked for and PyTorch finds no GPU here; use --device cpu")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def spread(task: nn.Module, world: World, *, how: str, device: torch.device) -> nn.Module:
    """Return what is called in training: the task itself, or a copy kept equal over processes, or shards of it."""
    if world.size == 1:
        return task
    if how == "fsdp":
        return _shard(task, device, world.size)
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        task, device_ids=[device.index] if device.type == "cuda" else None, find_unused_parameters=True
    )


def _shard(task: nn.Module, device: torch.device, size: int) -> nn.Module:
    """Shard a task's parameters in place, block by block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (size,))
    for module in task.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for block in module:
                small = sum(p.numel() for p in block.parameters()) < 10_000
                if not small and not isinstance(block, nn.ModuleList | nn.Sequential):
                    fully_shard(block, mesh=mesh)
    fully_shard(task, mesh=mesh)
    return task


def piece_of(tensor: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
    """Return the part of a tensor this process holds, the whole's shape, and where the part begins on the first axis."""
    if not hasattr(tensor, "device_mesh"):
        return tensor, tuple(tensor.shape), 0
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(tensor.shape), offset[0] if offset else 0


def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    local, _, begin = piece_of(tensor)
    with torch.no_grad():
        local.copy_(whole if local is tensor else whole[begin : begin + local.shape[0]])


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; all processes call this."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def whole_state(module: nn.Module) -> Mapping[str, Tensor]:
    """Return a module's state with every sharded tensor made whole; all processes call this."""
    return {name: whole(value.detach()) for name, value in module.state_dict().items()}
