"""Kernels on a machine without a GPU: operators by their references, and replacements that take every call."""

from collections import Counter

import torch

from saccade.kernels.modules import attention as attention_module
from saccade.kernels.modules import depthwise as depthwise_module
from saccade.kernels.modules.glmix import FusedBlock
from saccade.kernels.ops import add_up, attention, cluster, depthwise, gelu, norm, product
from saccade.kernels.table import KERNELS

OPERATORS = (add_up, attention, cluster, depthwise, gelu, norm, product)


class Somewhere(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


def by_references(monkeypatch, *, counted=True):
    """Have operators computed by their references; return how often each was called, if that is to be counted."""
    called = Counter()

    def listed(name, reference):
        return (lambda *given: called.update([name]) or reference(*given)) if counted else reference

    for home in OPERATORS:
        for name, reference in home.REFERENCES.items():
            monkeypatch.setattr(home, name, listed(name, reference))
    monkeypatch.setattr(depthwise, "gelu_gradient", listed("gelu_gradient", gelu.REFERENCES["gelu_gradient"]))
    return called


def takes_every_call(monkeypatch):
    """Have replacements of what is in GLMix blocks take calls on the CPU as they would compiled for a GPU."""
    for home, name in ((norm, "serves"), (cluster, "serves"), (depthwise_module, "serves")):
        monkeypatch.setattr(home, name, lambda *_: True)
    monkeypatch.setattr(FusedBlock, "takes", lambda *_: True)
    monkeypatch.setattr(depthwise_module.FusedDepthwiseConv, "takes", lambda *_: True)
    monkeypatch.setattr(attention_module, "trains_on_gpu", lambda _: torch.is_grad_enabled())
    monkeypatch.setattr(attention_module, "serves", lambda *_: True)


def swap(model, *names):
    """Swap in the kernels of rows of the table, in its order, wherever the model is; return what was swapped."""
    swapped = []
    for kernel in KERNELS:
        if kernel.name in names:
            replacements = {one.plain: one for one in kernel.replacements}
            for module in model.modules():
                replacement = replacements.get(type(module))
                if replacement is not None and replacement.refuses(module) is None:
                    swapped.append((module, type(module)))
                    module.__class__ = replacement
    return swapped


def undo(swapped):
    """Give modules their classes back."""
    for module, plain in reversed(swapped):
        module.__class__ = plain
