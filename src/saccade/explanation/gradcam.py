"""Grad-CAM: the places of a picture that speak for a class, for any network with a map of features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..layers.numerics import upcast
from ..plugins.tokens import Host, HostError, find_host
from ..tasks.classification.task import read_logits
from .draw import enlarge, heat_overlay, montage, scale_heat
from .listening import eval_mode
from .spots import Spot, hear_maps
from .terms import WORDS, choose_targets, hear_head, name_class
from .view import Figure, View

TITLE = "Where the answer comes from"
ABOUT = (
    "Grad-CAM: the features at a late layer, weighted by how much the answer would change with each of them. Light "
    "yellow places speak for the class, dark ones do not. Places that speak against it are dark too."
)
ABOUT_NUMBER = (
    "Grad-CAM: the features at a late layer, weighted by how much the number would change with each of them. Light "
    "yellow places raise it, dark ones do not. Places that lower it are dark too."
)
TRIED = 8  # maps that are looked at, from the last one on


@dataclass(frozen=True)
class Cams:
    """Grad-CAM of a batch.

    Attributes:
        layer: where the features were read.
        targets: B; the class of each picture.
        heat: by part of the answer ("both", "class", "words"), each B, H, W, from 0 to 1.
        logits: by part of the answer, each B; what it gives the class.
        peak: by part, each B; the greatest value before it was made 1, 0 where nothing speaks for the class.
    """

    layer: str
    targets: np.ndarray
    heat: dict[str, np.ndarray]
    logits: dict[str, np.ndarray]
    peak: dict[str, np.ndarray]


def gradcam_view(
    model: nn.Module,
    images: Tensor,
    pixels: Sequence[np.ndarray],
    *,
    targets: int | Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    numbers: bool = False,
) -> list[View]:
    """Return for every picture the places that speak for its class; for a second-order head also part by part.

    Args:
        model: any that gives each picture a score for every class or label, or tells numbers.
        images: B, C, H, W as the model takes them.
        pixels: the pictures, each H, W, 3 uint8.
        targets: the class to ask about, one or one for each picture; the best-scored one if not given.
        classes: names of the classes, or of the columns.
        numbers: whether the answers are numbers: none of them is the best, so the first is asked about.
    """
    targets = 0 if numbers and targets is None else targets
    try:
        cams = compute_gradcam(model, images, targets=targets)
    except HostError as error:
        return [View("gradcam", TITLE, ABOUT, absent=f"No Grad-CAM: {error}.") for _ in pixels]
    return [_view(cams, index, picture, classes, numbers=numbers) for index, picture in enumerate(pixels)]


def compute_gradcam(model: nn.Module, images: Tensor, *, targets: int | Sequence[int] | None = None) -> Cams:
    """Run a model on images and compute Grad-CAM at the last map through which the answer depends on the places.

    What only the class token is read of has no gradient at the words of its last block: there, the input of that
    block's attention is used. Raises HostError with the reason where there is no such map.

    Args:
        model: any classifier of pictures.
        images: B, C, H, W.
        targets: as in `gradcam_view`.
    """
    host = find_host(model)
    if host.text:
        raise HostError(f"{host.name} reads words, so there are no places of a picture")
    size = (images.shape[2], images.shape[3])
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model):
        with hear_maps(host, len(images)) as spots, hear_head(model) as call:
            # The gradient flows from the pictures on, whichever parameters are frozen.
            answer = model(images.detach().clone().requires_grad_())
        logits = _logits(host, answer)
        chosen = choose_targets(logits, targets)
        parts = {name: part.gather(1, chosen[:, None])[:, 0] for name, part in call.split(logits).items()}
        found = _choose(host, spots, parts, size)
    heat, peak = {}, {}
    spot, gradients = found
    features = upcast(spot.as_map(spot.tensor.detach(), host, size))
    for name, gradient in gradients.items():
        weights = upcast(gradient).mean((2, 3), keepdim=True)
        cam = (weights * features).sum(1).clamp_min(0).cpu().numpy()  # B, H, W
        peak[name] = cam.max((1, 2))
        heat[name] = np.stack([scale_heat(one) for one in cam])
    told = {name: parts[name].detach().float().cpu().numpy() for name in gradients}
    return Cams(spot.layer, chosen.cpu().numpy(), heat, told, peak)


def _logits(host: Host, answer: Any) -> Tensor:
    try:
        logits = read_logits(answer)
    except TypeError:
        raise HostError(f"{host.name} returns {type(answer).__name__}, not the logits of classes") from None
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise HostError(f"{host.name} returns {tuple(logits.shape)}, not the logits of classes")
    return logits


def _choose(
    host: Host, spots: Sequence[Spot], parts: dict[str, Tensor], size: tuple[int, int]
) -> tuple[Spot, dict[str, Tensor]]:
    """Return the first spot where every part of the answer has a gradient, else where the whole answer has one."""
    spots = [spot for spot in spots if spot.tensor.requires_grad][:TRIED]
    if not spots:
        raise HostError(f"{host.name} has no map of features: nothing in it keeps the places of the picture apart")
    answers = {}
    for name, part in parts.items():
        answers[name] = torch.autograd.grad(
            part.sum(), [spot.tensor for spot in spots], retain_graph=True, allow_unused=True
        )
    options, reason = [], ""
    for index, spot in enumerate(spots):
        try:
            maps = {name: spot.as_map(g[index], host, size) for name, g in answers.items() if g[index] is not None}
        except HostError as error:
            reason = str(error)
            continue
        maps = {name: gradient for name, gradient in maps.items() if bool((gradient != 0).any())}
        if "both" in maps:
            options.append((spot, maps))
    if not options:
        raise HostError(
            reason
            or f"the answer of {host.name} has no gradient at any of its last {len(spots)} maps of features "
            f"({', '.join(spot.layer for spot in spots)})"
        )
    return max(options, key=lambda option: len(option[1]))  # the first of those with most parts


def _view(cams: Cams, index: int, picture: np.ndarray, classes: Sequence[str] | None, *, numbers: bool) -> View:
    target = int(cams.targets[index])
    name = name_class(target, classes)
    picture = enlarge(picture)
    figures = []
    for part in cams.heat:
        logit, peak = float(cams.logits[part][index]), float(cams.peak[part][index])
        caption = f"Places that speak for {name!r} in {WORDS[part]}, whose score for it is {logit:.3g}."
        if numbers:
            caption = f"Places that raise {name!r} in {WORDS[part]}, {_which(target, classes)}."
        if peak == 0:
            caption += " None was found: the weighted features are negative everywhere."
        drawn = montage([picture, heat_overlay(picture, cams.heat[part][index])])
        key = "gradcam" if part == "both" else f"gradcam-{part}"
        measured = {"score": logit, "peak": peak, "grid": list(cams.heat[part].shape[1:])}
        figures.append(Figure(key, caption, pixels=drawn, numbers=measured, layer=cams.layer))
    about = f"{ABOUT_NUMBER if numbers else ABOUT} Read at: {cams.layer}."
    whole = {"target": target, "class": name, "layer": cams.layer}
    return View("gradcam", TITLE, about, figures=figures, numbers=whole)


def _which(target: int, classes: Sequence[str] | None) -> str:
    """Return which of a model's numbers was asked about."""
    if classes is None or len(classes) == 1:
        return "the number that the model tells"
    return f"number {target + 1} of the {len(classes)} that the model tells"
