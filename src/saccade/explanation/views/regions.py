"""View of regions: the contribution of each patch of an image to the answer to a question about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...tasks.classification.task import read_logits
from ...tasks.vqa.patches import join_patches, split_patches
from ..draw import to_grey
from ..outputs import choose_targets, name_class
from ..recording import eval_mode
from ..request import Method, ViewRequest, register_view
from ..view import Figure, View
from .words import AGAINST, FOR, STEPS

TITLE = "Which regions the answer comes from"
LEGEND = " Blue patches speak for the answer, orange ones against it; the strongest patch has the full colour."
METHODS = {
    "gradient": (
        "Gradient times input: a patch's influence is its normalised pixels times the gradient of the score with "
        "respect to them, summed over the patch: how much the score would lose, to first order, if the patch were grey."
    ),
    "integrated": (
        "Integrated gradients: a patch's influence is its normalised pixels times the mean gradient of the score on "
        "the path from a grey image to this one, summed over the patch. The numbers sum to the change of the score "
        "along that path."
    ),
}
ALPHA = 0.75  # opacity of the strongest patch


@dataclass(frozen=True)
class Regions:
    """The influence of the patches of one image."""

    target: int
    score: float  # logit of the target
    influence: np.ndarray  # rows, columns of patches


def compute_regions(
    model: nn.Module,
    ask: Callable[[nn.Module, Any], Any],
    batch: Mapping[str, Tensor],
    *,
    patch: int,
    target: int | None = None,
    method: Method = "gradient",
    steps: int = STEPS,
) -> Regions:
    """Return the influence of an image's patches on a score.

    Args:
        ask: runs the model on a batch, as a task's codec does.
        batch: one question; its normalised image is a square, 1, C, S, S, or in patches, 1, N, C, P, P, with `grid`.
        patch: side of a patch.
        target: output; default: the predicted one.
        steps: steps of integrated gradients (midpoint rule).
    """
    image = batch["image"].detach()

    def logits_at(share: float) -> tuple[Tensor, Tensor]:
        leaf = (share * image).requires_grad_()
        return read_logits(ask(model, {**batch, "image": leaf})), leaf

    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model):
        logits, leaf = logits_at(1.0)
        chosen = int(choose_targets(logits, target)[0])
        if method == "gradient":
            gradient = torch.autograd.grad(logits[0, chosen], leaf)[0]
        else:
            gradient = torch.zeros_like(image)
            for number in range(steps):
                part, leaf = logits_at((number + 0.5) / steps)
                gradient += torch.autograd.grad(part[0, chosen], leaf)[0] / steps
    parts = image * gradient
    if "grid" in batch:
        rows, columns = batch["grid"][0].tolist()
        parts = parts[:, : rows * columns]
    else:
        rows, columns = (side // patch for side in image.shape[-2:])
        parts = split_patches(parts, patch)
    influence = parts.sum((2, 3, 4))[0].float().cpu().numpy().reshape(rows, columns)
    return Regions(chosen, logits[0, chosen].item(), influence)


def colour_regions(pixels: np.ndarray, influence: np.ndarray) -> np.ndarray:
    """Colour a grey image, H, W, 3 uint8, by the influence of its patches, rows, columns."""
    strength = np.abs(influence) / max(np.abs(influence).max(), 1e-30)
    colours = np.where(influence[..., None] >= 0, FOR, AGAINST)  # rows, columns, 3
    size = np.ones((pixels.shape[0] // influence.shape[0], pixels.shape[1] // influence.shape[1]))
    alpha = ALPHA * np.kron(strength, size)[..., None]
    spread = np.stack([np.kron(colours[..., channel], size) for channel in range(3)], axis=-1)
    return np.rint(to_grey(pixels) * (1 - alpha) + spread * alpha).astype(np.uint8)


@register_view("regions", rank=6, reads=("questions",))
def _regions(request: ViewRequest) -> list[View]:
    loaded, batch, model = request.loaded, request.inputs, request.model
    assert loaded is not None
    method, patch = request.options.method, int(getattr(model.config, "patch_size", 1))
    found = compute_regions(model, loaded.task.codec.ask, batch, patch=patch, method=method)
    image = batch["image"]
    if "grid" in batch:
        image = join_patches(image, *batch["grid"][0].tolist())
    mean, std = (torch.tensor(one, device=image.device).view(-1, 1, 1) for one in (loaded.spec.mean, loaded.spec.std))
    shown = ((image[0] * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels = shown.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()
    rows, columns = found.influence.shape
    pixels = pixels[: pixels.shape[0] // rows * rows, : pixels.shape[1] // columns * columns]
    name = name_class(found.target, request.classes)
    caption = (
        f"Influence of each of {rows} x {columns} patches on {name!r}, whose score is {found.score:.3g}. The "
        f"influences sum to {found.influence.sum():.3g}."
    )
    numbers = {"score": found.score, "influence": found.influence.tolist()}
    figure = Figure("regions", caption, pixels=colour_regions(pixels, found.influence), numbers=numbers)
    about = {"target": found.target, "class": name, "method": method}
    return [View("regions", TITLE, METHODS[method] + LEGEND, figures=[figure], numbers=about)]
