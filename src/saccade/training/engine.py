"""How a step is executed: PyTorch's global settings, compiled blocks, CUDA graphs."""

import gc
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

PLACE = "TORCHINDUCTOR_CACHE_DIR"  # the compiler's cache folder
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Numbers = tuple[tuple[str, str, float], ...]
Kind = tuple[type, Shapes, Numbers, tuple[tuple[str, type], ...]]  # last: replacements of modules
_code: dict[tuple[Any, Kind], FunctionType] = {}  # by backend and kind, for later models of this process


@contextmanager
def torch_settings(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Set PyTorch's global settings for bit-reproducible runs, and restore them."""
    threads, matmul, dtype = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()
    benchmark, onednn = torch.backends.cudnn.benchmark, bool(_onednn().enabled)
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []), _compiling(config):
        try:
            if config.engine.threads is not None:
                torch.set_num_threads(config.engine.threads)
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("high" if gpu else "highest")
            torch.backends.cudnn.benchmark = False  # benchmarking took 30 s on an H200 and made no step faster
            # On Hopper the gradient is NaN where 64, 192 ... tokens meet logits below -88 (pytorch/pytorch#196678).
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


def free_memory() -> None:
    """Free what a run that ended still holds on a GPU: graphs with their memory, in cycles of references."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def turn_onednn_on() -> None:
    """Enable oneDNN on the CPU, as in a new process.

    PyTorch disables it for the rest of the process when a bfloat16 product fails, as on a CPU without bfloat16
    instructions. Sums are then in another order, so that results would depend on what was computed before.
    """
    _onednn().enabled = True


def _onednn() -> Any:
    return torch.backends.mkldnn


@contextmanager
def compiler_settings() -> Iterator[None]:
    """Set the compiler's global settings for training, and restore them.

    There is room for one version of a block for each drop path rate. Row and column sums are not fused into one kernel:
    since PyTorch 2.10 that has given wrong gradients without an error (pytorch/pytorch#190796, #193061, #195845).
    """
    from torch._dynamo import config as dynamo  # slow to import
    from torch._inductor import config as inductor

    fused = {"triton.mix_order_reduction": False} if hasattr(inductor.triton, "mix_order_reduction") else {}
    with dynamo.patch(recompile_limit=64), inductor.patch(fused):
        yield


def _compiling(config: TrainConfig) -> AbstractContextManager[None]:
    compiles = torch.cuda.is_available() if config.engine.compile is None else config.engine.compile
    return compiler_settings() if compiles else nullcontext()


def compile_parts(task: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """Compile a task's repeated blocks in place, or the whole task if there are none; return the module to call.

    Blocks of the same kind and shape share compiled code, which takes a fraction of the time of compiling the whole
    model; uncompiled code between blocks costs little when the step is replayed as a CUDA graph.

    The compiler caches its result with the Python code object, which all modules of a class share. Guards check shapes
    and numbers (up to a recompilation limit) but not hooks, so that a block with a plug-in's hook would run the code
    compiled without it. Therefore each kind of block gets its own code object, and a block with hooks is a separate
    kind. Shapes are static: those of one kind must not make another kind's dynamic.

    Drop path rates, which differ between blocks, become tensors, so that they do not make separate kinds.

    Compiled code is cached in this process, and for other processes in the user's cache folder.
    """
    keep_compiled()
    blocks = repeated_blocks(task)
    if not blocks:
        return torch.compile(task, backend=backend, dynamic=False)  # type: ignore[return-value]
    for block in blocks:
        compile_block(block, backend=backend)
    return task


def compile_block(block: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile one block in place, with the code object of its kind."""
    _share_drop_path(block)
    call = _copied_call() if _has_hooks(block) else _code.setdefault((backend, _kind(block)), _copied_call())
    options = _options(block) if backend == "inductor" else None
    compiled = torch.compile(MethodType(call, block), backend=backend, dynamic=False, options=options)
    block._compiled_call_impl = compiled  # as `nn.Module.compile` does


def _options(block: nn.Module) -> dict[str, Any] | None:
    """Return the compiler's options: on a GPU, combine independent casts and sums into one kernel.

    A block has dozens of them, taking one or two microseconds each: a third of a small model's kernels.
    """
    from torch._inductor import config

    on_gpu = any(parameter.is_cuda for parameter in block.parameters())
    return {"combo_kernels": True} if on_gpu and hasattr(config, "combo_kernels_pointwise_only") else None


def keep_compiled() -> None:
    """Use a compiler cache that only this user can write and later processes find."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get(PLACE) in (None, default_cache_dir()):  # the default sets itself when it is first read
        with suppress(OSError):  # otherwise the compiler uses a temporary folder
            os.environ[PLACE] = str(cache_folder("compiled"))


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled parts eagerly, for the few batches of other shapes."""
    return torch.compiler.set_stance("force_eager")


class DropPath(nn.Module):
    """Drop path whose rate is a tensor, so that compiled code does not depend on it; `scale` rescales the rest."""

    keep: Tensor

    def __init__(self, rate: float, *, scale: bool, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor(1 - rate, device=device), persistent=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Zero some samples of x, B, ..."""
        if not self.training:
            return x
        kept = torch.rand((len(x), *(1,) * (x.ndim - 1)), device=x.device) < self.keep
        return x * (kept / self.keep if self.scale else kept).to(x.dtype)


def _share_drop_path(block: nn.Module) -> None:
    """Replace a block's drop paths by ones with tensor rates."""
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
    """Return `_call` with a separate code object."""
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
    """Return the kind of a block, comparable across processes: types, submodules, and hooks by name."""
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
    """Return the smallest list members whose kind occurs more than once: blocks, not stages.

    Modules with the class attribute `compiles_whole` are included.
    """
    whole = [module for module in task.modules() if getattr(type(module), "compiles_whole", False)]
    inside = {id(m) for module in whole for m in module.modules()}
    members = [
        member
        for module in task.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and id(module) not in inside
        for member in module
        if isinstance(member, nn.Module)  # a slot may be None
        and not isinstance(member, nn.ModuleList | nn.Sequential)
        and len(list(member.children())) > 1
    ]
    kinds = Counter(plain_class(type(member)) for member in members)
    repeated = [member for member in members if kinds[plain_class(type(member))] > 1]
    known = {id(member) for member in repeated}
    blocks = [member for member in repeated if not any(id(m) in known for m in member.modules() if m is not member)]
    return whole + blocks


class Replay:
    """A step that runs eagerly a few times and is then captured and replayed as a CUDA graph.

    If it cannot be captured, one warning is given and it stays eager.

    Args:
        step: changes the same tensors in place, without synchronisation, for inputs of fixed shapes.
        warmup: eager steps before the capture, in which compilers and libraries initialise.
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
    """Capture work as a CUDA graph without running it; None, with a warning, if that fails."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            work()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error.__context__ or error).partition("\n")[0]
        warnings.warn(
            f"steps cannot be captured as a CUDA graph ({reason}) and run kernel by kernel, which is slower; "
            "engine.graphs=false skips the attempt",
            stacklevel=2,
        )
        # A failed capture leaves its stream and the random generators in capture mode.
        torch.cuda.set_stream(stream)
        for generator in torch.cuda.default_generators:
            generator.graphsafe_set_state(generator.clone_state())
        return None
    return graph
