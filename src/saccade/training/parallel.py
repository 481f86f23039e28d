"""One process or many: what a run needs to know about the others, and how its model is spread over them."""

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

SMALL_BLOCK = 10_000  # parameters; exchanging fewer on their own costs more than it saves


class World(Processes):
    """The processes of a run."""

    def wait(self) -> None:
        """Return when all processes have come here."""

    def unite(self, found: dict[str, Any]) -> None:
        """Add to what this process found what the others did; all call this."""
        for other in self.gather(dict(found)):
            found.update(other)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        return tensor

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values they have in the first process."""

    def any_of(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any process says so; all flags travel together."""
        return list(flags)

    def any_rank(self, flag: bool) -> bool:
        """Return whether any process says so."""
        return self.any_of(flag)[0]


class Alone(World):
    """A run of one process."""


class Together(World):
    """A run started by torchrun."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device

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

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values they have in the first process."""
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def any_of(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any process says so; all flags travel together."""
        any_flags = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(any_flags, dist.ReduceOp.MAX)
        return [bool(flag) for flag in any_flags.tolist()]


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the processes that torchrun started, if it did."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Alone()
        return
    ours = not dist.is_initialized()
    if ours:
        _connect("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Together(device)
    finally:
        if ours:
            dist.destroy_process_group()
            # What still holds a connection goes while Python runs: its threads may not want the lock of an ending one.
            atexit.register(gc.collect)


def _connect(backend: str) -> None:
    """Connect the processes, not to those of an earlier start.

    torchrun starts processes again after a death with the store of addresses that the dead ones left, and a process may
    read such an address before it is renewed. On one host the number of the start keeps them apart; on several, hosts
    may count differently, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun take a new store each time.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        dist.init_process_group(backend)
        return
    store, rank, size = next(rendezvous("env://"))
    store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


def local_device(name: str) -> torch.device:
    """Return the device a name stands for: "auto" is a GPU if there is one, each process with its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise ValueError(f"device {name!r} was asked for; give cpu, cuda, cuda:1, mps or auto")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name!r} was asked for and PyTorch finds no GPU here; use --device cpu")
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def wrap_ddp(task: nn.Module, world: World, *, device: torch.device, probe: Callable[[nn.Module], None]) -> nn.Module:
    """Return a task whose copies in all processes are kept equal by averaging their gradients.

    Args:
        task: the same in every process.
        probe: runs the task forward and backward once on a few images; looking for parameters without a gradient in
            every step would cost a walk through the graph each time, so it is done only where this finds some.
    """
    from torch.nn.parallel import DistributedDataParallel

    unused = world.any_rank(_has_unused_parameters(task, probe, device))
    devices = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        task, device_ids=devices, find_unused_parameters=unused, gradient_as_bucket_view=True
    )


def _has_unused_parameters(task: nn.Module, probe: Callable[[nn.Module], None], device: torch.device) -> bool:
    """Tell whether a step leaves a trained parameter without gradient; nothing is changed by trying."""
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
    """Shard a task's parameters in place, block by block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    scalars = [name for name, p in task.named_parameters() if p.dim() == 0]
    if scalars:
        raise ValueError(
            f"engine.parallel=fsdp was asked for and {', '.join(scalars[:3])} are single numbers, which cannot be "
            "sharded; use engine.parallel=ddp"
        )
    mesh = init_device_mesh(device.type, (size,))
    # Inner blocks first: what is left of a block then belongs to the block around it. Weights are parted again after
    # every pass, so that no stale whole copy outlives a change of the parts.
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
    """Hold all weights of a sharded module in every process for a while; each may then call it as often as it needs."""
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
