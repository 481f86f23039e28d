"""Triton, the compiler of GPU kernels that comes with PyTorch on Linux: whether it serves, and its language.

Kernels are plain functions until one of them is used, so that importing this package imports no compiler.
"""

import importlib.metadata
import math
import os
from collections.abc import Callable
from typing import Any

import torch

OLDEST = (3, 5)  # version that the kernels were compiled with


def _installed() -> bool:
    try:
        found = importlib.metadata.version("triton").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return torch.version.hip is None and tuple(int(part) for part in found if part.isdecimal()) >= OLDEST


INSTALLED = _installed()


def triton_for(space: dict[str, Any], *called: Callable[..., Any]) -> Any:
    """Return Triton, with its language as `tl` in a module, and what its kernels call made Triton's under their names.

    Args:
        space: names of the module.
        called: functions that its kernels call.
    """
    triton = importlib.import_module("triton")  # a plain import would ask type checkers for its stubs
    space["tl"] = triton.language
    for function in called:
        space[function.__name__] = triton.jit(function)
    return triton


def launchable(kernel: Any) -> Any:
    """Return a kernel for an operator to launch: as a compiler sees it, or itself in Triton's interpreter."""
    return kernel if os.environ.get("TRITON_INTERPRET") == "1" else torch.library.wrap_triton(kernel)


def tile_side(length: int) -> int:
    """Return the side of a tile that holds a length: a power of two, and no less than products take."""
    return max(2 ** math.ceil(math.log2(length)), 16)
