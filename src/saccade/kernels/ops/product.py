"""Batched matrix products that a compiler leaves whole.

On a GPU the compiler may pad an operand whose side is no multiple of eight, by what its clock says that moment; fused
with a norm of a map, such a padding breaks its code generation (seen with torch 2.11: `CantSplit`). Sides do not matter
to the kernels where the rows lie aligned, so it is not shown those products.
"""

from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("saccade", "FRAGMENT")  # a custom_op takes twice as long to call (torch 2.11)
LIBRARY.define("unpadded_product(Tensor a, Tensor b) -> Tensor")
for device in ("CUDA", "CPU"):
    LIBRARY.impl("unpadded_product", torch.bmm, device)
torch.library.register_fake("saccade::unpadded_product", torch.bmm, lib=LIBRARY)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, B, N, K by B, K, M."""
    if a.is_cuda and torch.compiler.is_compiling() and _uneven(a, b):
        if torch.is_autocast_enabled("cuda"):  # which knows the operators it is made for
            a, b = a.to(torch.get_autocast_dtype("cuda")), b.to(torch.get_autocast_dtype("cuda"))
        return unpadded_product(a, b)
    return a @ b


def _uneven(a: Tensor, b: Tensor) -> bool:
    """Whether a side is one that the compiler would pad; a symbol it never does."""
    return any(isinstance(side, int) and side % 8 for side in (*a.shape[1:], b.shape[2]))


def unpadded_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b as one operator that the compiler takes as it is."""
    found: Tensor = torch.ops.saccade.unpadded_product(a, b)
    return found


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    of_a = unpadded_product(grad, b.mT) if ctx.needs_input_grad[0] else None
    of_b = unpadded_product(a.mT, grad) if ctx.needs_input_grad[1] else None
    return of_a, of_b


torch.library.register_autograd("saccade::unpadded_product", _gradients, setup_context=_keep, lib=LIBRARY)
REFERENCES = {"unpadded_product": torch.bmm}
