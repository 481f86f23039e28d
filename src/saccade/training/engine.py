"""How a step is computed: PyTorch's settings, compiled blocks, whole steps as CUDA graphs."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FunctionType, MethodType
from typing import Any

import timm.layers
import torch
from torch import Tensor, nn

from ..kernels.fused import Fused, plain_class
from ..settings import TrainConfig
from ..support.files import cache_folder

PLACE = "TORCHINDUCTOR_CACHE_DIR"  # where the compiler keeps what it makes
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Numbers = tuple[tuple[str, str, float], ...]
Kind = tuple[type, Shapes, Numbers, tuple[tuple[str, type], ...]]  # of blocks; the last, what stands for plain modules
_code: dict[tuple[Any, Kind], FunctionType] = {}  # of every backend and kind: later models of this process find it


@contextmanager
def torch_settings(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Set what PyTorch keeps for a whole process, so that a run gives the same bits anywhere, and put it back."""
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
            torch.backends.cudnn.benchmark = False  # trying algorithms out took 30 s of an H200 and gained no step
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


def compile_parts(task: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """Compile a task's repeated blocks in place, or the whole task if it repeats none; return what is to be called.

    Blocks of one kind and shape share what the compiler made, which takes a fraction of the time that compiling the
    whole takes, and the steps between them cost little where they are replayed as a CUDA graph.

    The compiler keeps what it made with the code it was made from, and that code is one for all modules. It checks
    shapes and numbers before it uses it again and gives up after a few that differ, but not hooks: a block that a
    plug-in listens to would be given what was made for one without. So each kind gets code of its own, and a block with
    hooks is a kind. Shapes stay constants: the shape of another kind must not make variables of this one's.

    Rates of drop path, which differ from block to block, become tensors, so that they make no kinds.

    What was made is kept: for the next model in this process with its code, for other processes in the user's cache.
    """
    keep_compiled()
    blocks = repeated_blocks(task)
    if not blocks:
        return torch.compile(task, backend=backend, dynamic=False)  # type: ignore[return-value]
    for block in blocks:
        compile_block(block, backend=backend)
    return task


def compile_block(block: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile one block in place, with the code of its kind."""
    _share_drop_path(block)
    call = _copied_call() if _has_hooks(block) else _code.setdefault((backend, _kind(block)), _copied_call())
    options = _options(block) if backend == "inductor" else None
    compiled = torch.compile(MethodType(call, block), backend=backend, dynamic=False, options=options)
    block._compiled_call_impl = compiled  # as `nn.Module.compile`


def _options(block: nn.Module) -> dict[str, Any] | None:
    """Return the compiler's options: on a GPU, casts and sums that do not need each other in one kernel.

    A block has dozens of them, of a microsecond or two, and a third of a small model's kernels are such.
    """
    from torch._inductor import config

    on_gpu = any(parameter.is_cuda for parameter in block.parameters())
    return {"combo_kernels": True} if on_gpu and hasattr(config, "combo_kernels_pointwise_only") else None


def keep_compiled() -> None:
    """Let the compiler keep what it makes where this user's later processes find it and nobody else writes."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get(PLACE) in (None, default_cache_dir()):  # the latter is set by itself once it is asked for
        with suppress(OSError):  # without such a folder the compiler has one that lasts as long as the machine runs
            os.environ[PLACE] = str(cache_folder("compiled"))


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled parts as they were written: a few batches of other shapes do not repay being compiled for."""
    return torch.compiler.set_stance("force_eager")


class DropPath(nn.Module):
    """Leave whole branches out by chance, at a rate that compiled code reads when it runs; `scale` makes up for it."""

    keep: Tensor

    def __init__(self, rate: float, *, scale: bool, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor(1 - rate, device=device), persistent=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return B, ... with some samples at zero."""
        if not self.training:
            return x
        kept = torch.rand((len(x), *(1,) * (x.ndim - 1)), device=x.device) < self.keep
        return x * (kept / self.keep if self.scale else kept).to(x.dtype)


def _share_drop_path(block: nn.Module) -> None:
    """Give a block drop paths that are all of one kind."""
    device = next(block.parameters(), torch.empty(0)).device
    found = [(parent, name, child) for parent in block.modules() for name, child in parent.named_children()]
    for parent, name, child in found:
        if (
            type(child) is timm.layers.DropPath
            and child.drop_prob
            and not (child._forward_hooks or child._forward_pre_hooks)
        ):
            shared = DropPath(child.drop_prob, scale=child.scale_by_keep, device=device)
            setattr(parent, name, shared.train(child.training))


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return nn.Module._call_impl(self, *args, **kwargs)


def _copied_call() -> FunctionType:
    """Return `_call` with a code object of its own."""
    return FunctionType(_call.__code__.replace(), _call.__globals__, _call.__name__)


def _kind(block: nn.Module) -> Kind:
    shapes = tuple((name, tuple(value.shape)) for name, value in block.named_parameters())
    numbers = tuple(
        (name, key, value > 0 if type(module) is timm.layers.DropPath else value)  # its rate becomes a tensor
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, float)
    )
    replaced = tuple((name, type(module)) for name, module in block.named_modules() if isinstance(module, Fused))
    return type(block), shapes, numbers, replaced


def describe_kind(block: nn.Module) -> str:
    """Return what tells a block's kind from others in any process: what is inside, too, and hooks by their names."""
    inside = [
        (name, type(module), *(getattr(hook, "__qualname__", type(hook)) for hook in _hooks(module)))
        for name, module in block.named_modules()
    ]
    return repr((_kind(block), inside))


def _has_hooks(block: nn.Module) -> bool:
    return any(_hooks(module) for module in block.modules())


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def repeated_blocks(task: nn.Module) -> list[nn.Module]:
    """Return the smallest members of lists of modules whose kind the task has more than once: blocks, not stages.

    A module whose class says `compiles_whole` is one of them, whatever is inside.
    """
    whole = [module for module in task.modules() if getattr(type(module), "compiles_whole", False)]
    inside = {id(m) for module in whole for m in module.modules()}
    members = [
        member
        for module in task.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and id(module) not in inside
        for member in module
        if isinstance(member, nn.Module)  # a place may hold nothing
        and not isinstance(member, nn.ModuleList | nn.Sequential)
        and len(list(member.children())) > 1
    ]
    kinds = Counter(plain_class(type(member)) for member in members)
    repeated = [member for member in members if kinds[plain_class(type(member))] > 1]
    known = {id(member) for member in repeated}
    blocks = [member for member in repeated if not any(id(m) in known for m in member.modules() if m is not member)]
    return whole + blocks


class Replay:
    """A step that runs as it is a few times, is then captured, and replayed from there on.

    A step that cannot be captured, which is told once, runs as it is from there on.

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
        if self.left >= 0:
            self.inputs = [tensor.clone() for tensor in inputs]
        if self.left > 0:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.step(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
        elif self.left == 0:
            self.graph = capture(lambda: self.step(*self.inputs))
        self.left -= 1
        if self.graph is not None:
            for place, tensor in zip(self.inputs, inputs, strict=True):
                place.copy_(tensor, non_blocking=True)
            self.graph.replay()
        elif self.left < 0:
            self.step(*inputs)


def capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
    """Return work as a CUDA graph, not yet run; None, with a warning that says why, where it cannot be captured."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            work()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error.__context__ or error).partition("\n")[0]
        warnings.warn(
            f"steps run kernel by kernel, which is slower: they cannot be captured as a CUDA graph ({reason}); "
            "engine.graphs=false leaves the attempt out",
            stacklevel=2,
        )
        # A capture that broke off leaves its stream in use and the generators waiting for its end.
        torch.cuda.set_stream(stream)
        for generator in torch.cuda.default_generators:
            generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph
