"""Write over a tensor that nobody will look at again, in inference: fresh memory costs more on the CPU than a pass."""

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from .switch import on


def spare(x: Tensor, source: Tensor, *makers: nn.Module) -> bool:
    """Tell whether a tensor may be overwritten: made here, in eager inference, with nobody listening.

    Args:
        x: the tensor.
        source: what it was made of; a module that returns its input has made nothing.
        makers: modules that returned it, themselves or through the modules inside them.
    """
    return (
        eager_inference(x)
        and x.is_contiguous()
        and x.dtype == source.dtype
        and x.data_ptr() != source.data_ptr()
        and unheard(*makers)
    )


def add(x: Tensor, branch: Tensor, *makers: nn.Module) -> Tensor:
    """Return the sum of a tensor and a branch that the modules made of it."""
    return branch.add_(x) if spare(branch, x, *makers) else x + branch


def unheard(*modules: nn.Module) -> bool:
    """Tell whether nobody listens to modules or to what is inside them."""
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return False
    if hooks._global_backward_hooks or hooks._global_backward_pre_hooks:
        return False
    left: list[nn.Module | None] = list(modules)
    while left:  # `modules()` takes twice as long, and this is asked several times a block
        m = left.pop()
        if m is None:
            continue
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return False
        left.extend(m._modules.values())
    return True


def eager_inference(x: Tensor) -> bool:
    """Tell whether nothing but plain inference is going on: no gradients, no compiler, no tracer, no transform."""
    return on("reuse") and not torch.is_grad_enabled() and eager(x)


def eager(x: Tensor) -> bool:
    """Tell whether operators run one by one: no compiler, no tracer, no transform."""
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and type(x) is Tensor  # a tracer's stand-in is not
    )
