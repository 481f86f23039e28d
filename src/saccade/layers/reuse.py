"""Write over a tensor that nobody will look at again, in inference: fresh memory costs more on the CPU than a pass."""

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks


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
        and not (hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
        and not any(m._forward_hooks or m._forward_pre_hooks for maker in makers for m in maker.modules())
    )


def eager_inference(x: Tensor) -> bool:
    """Tell whether nothing but plain inference is going on: no gradients, no compiler, no tracer, no transform."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and type(x) is Tensor  # a tracer's stand-in is not
    )
