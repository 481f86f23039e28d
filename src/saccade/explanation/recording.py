"""Record what passes a model's modules, without changing the model or its answer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..layers.second_order import SecondOrder

Recorded = dict[nn.Module, Tensor]  # the last output of each module recorded


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for a while; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def record(modules: Iterable[nn.Module]) -> Iterator[Recorded]:
    """Keep the last output of each module; of a tuple, its first part."""
    recorded: Recorded = {}

    def keep(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        recorded[module] = output[0] if isinstance(output, tuple) else output

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def heard(model: nn.Module, images: Tensor, taps: Iterable[nn.Module]) -> Recorded:
    """Run a model on images in evaluation mode, and return what passed its taps."""
    with eval_mode(model), record(taps) as recorded:
        model(images)
    return recorded


PARTS = {
    "both": "the whole answer",
    "class": "the class token alone",
    "words": "the word tokens alone (their second-order statistics)",
}


class HeadCall:
    """What a second-order head was given in the call that is running; empty for a model without one."""

    def __init__(self, head: SecondOrder | None) -> None:
        self.head = head
        self.tokens: Tensor | None = None
        self.mask: Tensor | None = None

    def split(self, logits: Tensor) -> dict[str, Tensor]:
        """Return logits, B, K, by where they come from: "both", and of a head with two parts "class" and "words"."""
        return {"both": logits, **(split_logits(self.head, self.tokens, self.mask) if self.head is not None else {})}

    def keep(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the head."""
        given = {**dict(zip(("x", "mask"), args, strict=False)), **kwargs}
        self.tokens, self.mask = given["x"], given.get("mask")


@contextmanager
def record_head(model: nn.Module) -> Iterator[HeadCall]:
    """Listen to a model's second-order head, if it has one."""
    head = next((module for module in model.modules() if isinstance(module, SecondOrder)), None)
    call = HeadCall(head)
    hook = head.register_forward_pre_hook(call.keep, with_kwargs=True) if head is not None else None
    try:
        yield call
    finally:
        if hook is not None:
            hook.remove()


def split_logits(head: SecondOrder, tokens: Tensor | None, mask: Tensor | None) -> dict[str, Tensor]:
    """Return the logits of class token and words apart; empty where the head has not both, or pools them as one.

    With sum and late fusion they are the outputs of two classifiers, with concatenation the two parts of one matrix
    product.
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
