"""Check whether attaching a plug-in changes what a trained model computes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

SAME = 1e-4  # relative tolerance for another order of summation


@contextmanager
def note_changed_outputs(
    model: Any,
    text: str,
    shape: tuple[int, ...],
    say: Callable[[str], None],
    *,
    classifier: bool,
    features: bool = True,
) -> Iterator[None]:
    """Attach a plug-in within this context, and report if the trained model's outputs change.

    Args:
        model: a model with trained weights; its mode and the random state are restored.
        shape: shape of an image, C, H, W.
        classifier: whether the classifier is trained.
        features: whether the weights were trained without the plug-in.
    """
    before, known = _features(model, shape) if features else None, _classifier(model)
    yield
    if classifier and _classifier(model) != known:
        say(f"{text} replaces the trained classifier with a new one; {_with(text, 'beside=true')} keeps it")
    if before is None or (after := _features(model, shape)) is None:
        return
    changed = 1.0 if before.shape != after.shape else float((after - before).norm() / before.norm().clamp_min(1e-12))
    if changed <= SAME:
        say(f"{text} starts as the identity: the features of the trained weights do not change")
        return
    instead = f"; {_with(text, 'scale=true')} starts as the identity" if text.partition(":")[0] == "broadcast" else ""
    say(
        f"{text} changes the features of the trained weights by {changed:.0%}; training has to adapt to the "
        f"change{instead}"
    )


def _with(text: str, option: str) -> str:
    return f"{text}{',' if ':' in text else ':'}{option}"


def _classifiers(model: Any) -> tuple[nn.Module, ...]:
    found = model.get_classifier() if hasattr(model, "get_classifier") else ()
    return found if isinstance(found, tuple) else (found,)


def _classifier(model: Any) -> set[int]:
    return {id(p) for head in _classifiers(model) for p in head.parameters()}


def _features(model: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return a model's features of a noise image; None if it does not take such an image."""
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = getattr(model, "forward_features", model)(image)
    except Exception:  # other models raise their own errors in training
        return None
    finally:
        for module, mode in modes:
            module.training = mode
    if isinstance(found, tuple | list):
        found = found[0]
    return found.float() if isinstance(found, Tensor) else None


def new_parameters(model: nn.Module, known: set[int]) -> frozenset[str]:
    """Return the names of parameters whose ids are not known."""
    return frozenset(name for name, value in model.named_parameters() if id(value) not in known)


def zero_new_classifier(model: Any) -> None:
    """Initialise a new classifier of a pretrained model to zero.

    Predictions are then uniform at first, and the pretrained layers get no gradients from random classifier weights.
    """
    new = {id(p) for name, p in model.named_parameters() if name in model.new_parameters}
    for head in _classifiers(model):
        if isinstance(head, nn.Linear) and all(id(p) in new for p in head.parameters()):
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
