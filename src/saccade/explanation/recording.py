"""Record the outputs of modules without changing the model or its output."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..layers.second_order import SecondOrder

Recorded = dict[nn.Module, Tensor]  # the last output of each recorded module


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within a context; every module's mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def record(modules: Iterable[nn.Module]) -> Iterator[Recorded]:
    """Record the last output of each module; of tuples, the first element."""
    recorded: Recorded = {}

    def keep(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        recorded[module] = output[0] if isinstance(output, tuple) else output

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def record_taps(model: nn.Module, images: Tensor, taps: Iterable[nn.Module]) -> Recorded:
    """Run a model on images in evaluation mode, and return the outputs of its taps."""
    with eval_mode(model), record(taps) as recorded:
        model(images)
    return recorded


PARTS = {
    "both": "the whole answer",
    "class": "the class token only",
    "words": "the word tokens only (their second-order statistics)",
}


class HeadCall:
    """The inputs of a second-order head in the current forward pass; empty without one."""

    def __init__(self, head: SecondOrder | None) -> None:
        self.head = head
        self.tokens: Tensor | None = None
        self.mask: Tensor | None = None

    def split(self, logits: Tensor) -> dict[str, Tensor]:
        """Return logits, B, K, by source: "both", and for a head with two parts "class" and "words"."""
        return {"both": logits, **(split_logits(self.head, self.tokens, self.mask) if self.head is not None else {})}

    def keep(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the head."""
        given = {**dict(zip(("x", "mask"), args, strict=False)), **kwargs}
        self.tokens, self.mask = given["x"], given.get("mask")


@contextmanager
def record_head(model: nn.Module) -> Iterator[HeadCall]:
    """Record a model's second-order head, if it has one."""
    head = next((module for module in model.modules() if isinstance(module, SecondOrder)), None)
    call = HeadCall(head)
    hook = head.register_forward_pre_hook(call.keep, with_kwargs=True) if head is not None else None
    try:
        yield call
    finally:
        if hook is not None:
            hook.remove()


def split_logits(head: SecondOrder, tokens: Tensor | None, mask: Tensor | None) -> dict[str, Tensor]:
    """Return separate logits of class token and patch tokens; empty if the head does not have both.

    With sum and late fusion they are outputs of two classifiers, with concatenation the two parts of a matrix product.
    """
    if tokens is None or not head.num_classes or not (head.class_width and head.word_width):
        return {}
    token, words = head.represent(tokens, mask)
    if token is None or words is None or head.word_fc is None:
        return {}
    if head.class_fc is not None:
        return {"class": head.class_fc(token), "words": head.word_fc(words)}
    weight = head.word_fc.weight
    return {"class": token @ weight[:, : head.class_width].T, "words": words @ weight[:, head.class_width :].T}
