"""Late fusion of class token and words: two classifiers, whose losses are added in training."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ...layers.second_order import SecondOrder


def find_late(model: nn.Module) -> SecondOrder | None:
    """Return a model's head that is to be trained as two classifiers; None if it has none.

    With late="scores", the paper's form, both scores are added in training too, which is what the head returns.
    """
    heads = (module for module in model.modules() if isinstance(module, SecondOrder))
    return next((head for head in heads if head.fusion == "late" and head.late == "logits" and head.has_pair), None)


@contextmanager
def hear_pair(head: SecondOrder) -> Iterator[list[Tensor]]:
    """Keep the logits of class token and words, B, K each, that pass while the model runs."""
    heard: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, _args, output: heard.append(output))
        for layer in (head.class_fc, head.word_fc)
        if layer is not None
    ]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
