"""What a call is compiled for: kernels ask this before they take it."""

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def is_exporting() -> bool:
    """Whether `torch.export` runs, and not `torch.compile`; torch 2.11's own answer is yes wherever it compiles."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def compiles_for_gpu(x: Tensor) -> bool:
    """Whether what reads a tensor is being compiled for the GPU that holds it."""
    return torch.compiler.is_compiling() and not is_exporting() and x.is_cuda  # a tracer's stand-in cannot say the last


def trains_on_gpu(x: Tensor) -> bool:
    """Whether what reads a tensor is being compiled for training on the GPU that holds it."""
    return compiles_for_gpu(x) and torch.is_grad_enabled()


def in_half_precision(x: Tensor) -> bool:
    """Whether a tensor is, or was most likely computed in, half precision."""
    return x.dtype in HALVES or torch.is_autocast_enabled(x.device.type)


def is_constant(size: int) -> bool:
    """Whether a size is one number to the compiler, and no symbol for several; asked by `isinstance`, both are."""
    from torch.fx.experimental import symbolic_shapes

    known = getattr(symbolic_shapes, "has_static_value", None)
    return known is not None and bool(known(size))


def shared_memory(x: Tensor) -> int:
    """Return how many bytes a program may hold in the shared memory of the GPU that has a tensor."""
    return _shared_memory(x.device.index or 0)


@torch.compiler.assume_constant_result
def _shared_memory(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).shared_memory_per_block_optin)
