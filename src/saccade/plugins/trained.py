"""Whether a plug-in leaves trained weights as they are when it is attached, found by asking the model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

SAME = 1e-4  # of the features' size: what another order of sums may change


@contextmanager
def watched(
    model: Any,
    text: str,
    shape: tuple[int, ...],
    say: Callable[[str], None],
    *,
    classifier: bool,
    features: bool = True,
) -> Iterator[None]:
    """Attach a plug-in inside of this, and hear whether what trained weights compute is the same as before.

    Args:
        model: with trained weights; its mode and the state of chance are left as they are.
        shape: of an image, C, H, W.
        classifier: whether the model's classifier is a trained one, too.
        features: whether the weights were trained for what the model computes without the plug-in.
    """
    before, known = _features(model, shape) if features else None, _classifier(model)
    yield
    if classifier and _classifier(model) != known:
        say(f"{text} replaces the trained classifier by a new one; {_with(text, 'beside=true')} keeps it")
    if before is None or (after := _features(model, shape)) is None:
        return
    changed = 1.0 if before.shape != after.shape else float((after - before).norm() / before.norm().clamp_min(1e-12))
    if changed <= SAME:
        say(f"{text} starts as identity: the features of the trained weights are the same with it")
        return
    instead = f"; {_with(text, 'scale=true')} starts as identity" if text.partition(":")[0] == "broadcast" else ""
    say(f"{text} changes the features of the trained weights by {changed:.0%}; training has to adapt to it{instead}")


def _with(text: str, option: str) -> str:
    return f"{text}{',' if ':' in text else ':'}{option}"


def _classifiers(model: Any) -> tuple[nn.Module, ...]:
    found = model.get_classifier() if hasattr(model, "get_classifier") else ()
    return found if isinstance(found, tuple) else (found,)


def _classifier(model: Any) -> set[int]:
    return {id(p) for head in _classifiers(model) for p in head.parameters()}


def _features(model: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return what a model makes of one image of noise; None where it takes no such image."""
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = getattr(model, "forward_features", model)(image)
    except Exception:  # a model of another kind says itself what it wants when it is trained
        return None
    finally:
        for module, mode in modes:
            module.training = mode
    if isinstance(found, tuple | list):
        found = found[0]
    return found.float() if isinstance(found, Tensor) else None


def new_parameters(model: nn.Module, known: set[int]) -> frozenset[str]:
    """Return the names of the parameters that are not among those with some ids."""
    return frozenset(name for name, value in model.named_parameters() if id(value) not in known)


def zero_new_classifier(model: Any) -> None:
    """Let a classifier that trained weights did not fill begin at zero.

    No answer is preferred then before the first step, and what lies below hears only of what the classifier has learnt,
    never of where chance had put it.
    """
    new = {id(p) for name, p in model.named_parameters() if name in model.new_parameters}
    for head in _classifiers(model):
        if isinstance(head, nn.Linear) and all(id(p) in new for p in head.parameters()):
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
