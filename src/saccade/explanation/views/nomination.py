"""View of a NomMer's nominations: the context that each position selects, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ...layers.nominate import CANDIDATES, Nominator, Synergy
from ...layers.numerics import upcast
from ...report import Html, grid, line_chart
from ..draw import enlarge, montage, overlay, share_colours, to_grey, upsample
from ..recording import Recorded, record_taps
from ..request import ViewRequest, register_view
from ..view import Figure, View

TITLE = "What each place nominates"
ABOUT = (
    "At every place of the image a layer chooses between three kinds of context. Red: a convolution over the "
    "neighbourhood. Green: attention within a window. Blue: attention over the whole image, compressed. The hard map "
    "shows the best-scored choice alone; the soft map mixes the colours by the softmax of the scores: a mixed colour "
    "is an undecided place."
)
COLOURS = {"cnn": 0, "window": 1, "global": 2}  # red, green, blue
WORDS = {"cnn": "convolution", "window": "window", "global": "compressed global"}


@dataclass(frozen=True)
class Nomination:
    """Nominations of one layer."""

    layer: str  # path of the nominator
    names: tuple[str, ...]  # names of the candidates
    hard: np.ndarray  # B, H, W, count; one-hot
    soft: np.ndarray  # B, H, W, count; probabilities
    used: str  # "hard" or "soft", as used by the network


def nomination_view(
    model: nn.Module, images: Tensor, pixels: Sequence[np.ndarray], *, recorded: Recorded | None = None
) -> list[View]:
    """Return a view for every image with nomination maps and the share of each context by layer.

    Args:
        model: any model; only those with nominators have something to show.
        recorded: outputs of the `nomination_taps` for these images; default: the model is run.
    """
    layers = read_nominations(model, images, recorded=recorded)
    if not layers:
        absent = (
            "This model has no layer that chooses between several kinds of context. NomMer models have, such as "
            "nommer_tiny."
        )
        return [View("nomination", TITLE, ABOUT, absent=absent) for _ in pixels]
    return [_view(layers, index, image) for index, image in enumerate(pixels)]


def nomination_taps(model: nn.Module) -> list[nn.Module]:
    """Return the taps of a model's nominations."""
    return [module.scores for module in model.modules() if isinstance(module, Nominator)]


@torch.no_grad()
def read_nominations(model: nn.Module, images: Tensor, *, recorded: Recorded | None = None) -> list[Nomination]:
    """Return the nominations of a model's layers for images, in order; empty if there are none."""
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, Nominator)]
    if not found:
        return []
    recorded = record_taps(model, images, nomination_taps(model)) if recorded is None else recorded
    return [_read(model, path, module, recorded[module.scores]) for path, module in found if module.scores in recorded]


def _read(model: nn.Module, path: str, nominator: Nominator, scores: Tensor) -> Nomination:
    scores = upcast(scores)
    soft = torch.softmax(scores / nominator.temperature, dim=-1)
    hard = torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
    return Nomination(
        layer=path,
        names=_names(model, path, scores.shape[-1]),
        hard=hard.cpu().numpy(),
        soft=soft.cpu().numpy(),
        used="hard" if nominator.hard else "soft",
    )


def _names(model: nn.Module, path: str, count: int) -> tuple[str, ...]:
    parent = model.get_submodule(path.rpartition(".")[0])
    if isinstance(parent, Synergy):
        parts = zip(CANDIDATES, (parent.cnn, parent.window, parent.dct), strict=True)
        return tuple(name for name, part in parts if part is not None)
    return CANDIDATES if count == len(CANDIDATES) else tuple(f"candidate {i + 1}" for i in range(count))


def _view(layers: Sequence[Nomination], index: int, image: np.ndarray) -> View:
    figures = [_figure(layer, index, depth, image) for depth, layer in enumerate(layers)]
    rows = [{"layer": figure.layer, **figure.numbers} for figure in figures]
    charts = grid(_chart(rows, "hard"), _chart(rows, "soft"))
    caption = (
        "Share of the image for each kind of context, layer by layer: by the best choice (hard), and averaged over "
        "the softmax (soft). In each layer the shares sum to 100 %."
    )
    summary = Figure("nomination-shares", caption, chart=charts)
    return View("nomination", TITLE, ABOUT, figures=(*figures, summary), numbers={"layers": rows})


def _figure(layer: Nomination, index: int, depth: int, image: np.ndarray) -> Figure:
    hard, soft = layer.hard[index], layer.soft[index]
    image = enlarge(image)
    drawn = [_draw(image, shares, layer.names) for shares in (hard, soft)]
    numbers = {
        "grid": list(hard.shape[:2]),
        "network": layer.used,
        "hard": _shares(hard, layer.names),
        "soft": _shares(soft, layer.names),
        "certainty": float(soft.max(axis=-1).mean()),
    }
    text = ", ".join(f"{share:.0%} {WORDS.get(name, name)}" for name, share in numbers["hard"].items())  # type: ignore[attr-defined]
    caption = (
        f"Layer {depth + 1} ({layer.layer.removesuffix('.nominator')}): {text}. The network itself uses {layer.used} "
        f"nomination; the mean share of the best choice is {numbers['certainty']:.0%}."
    )
    return Figure(
        f"nomination-{depth}",
        caption,
        pixels=montage([image, *drawn], captions=["image", "hard nomination", "soft nomination"]),
        numbers=numbers,
        layer=layer.layer,
        depth=depth,
    )


def _draw(image: np.ndarray, shares: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Colour each position by its probabilities; unknown candidates take the colours in order."""
    mixed = np.zeros((*shares.shape[:2], 3))
    for number, name in enumerate(names):
        mixed[..., COLOURS.get(name, number % 3)] += shares[..., number]
    return overlay(to_grey(image), upsample(share_colours(mixed), *image.shape[:2], smooth=False), alpha=0.6)


def _shares(shares: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    means = shares.reshape(-1, shares.shape[-1]).astype(np.float64).mean(axis=0)
    return dict(zip(names, (means / means.sum()).tolist(), strict=True))


def _chart(rows: Sequence[dict], kind: str) -> Html:
    names = list(dict.fromkeys(name for row in rows for name in row[kind]))
    lines = {
        WORDS.get(name, name): [(depth + 1, row[kind].get(name, float("nan"))) for depth, row in enumerate(rows)]
        for name in names
    }
    return line_chart(
        lines, title=f"Shares by {kind} nomination", x_label="layer", y_label="share", y_range=(0, 1), percent=True
    )


@register_view("nomination", rank=50, taps=nomination_taps)
def _nomination(request: ViewRequest) -> list[View]:
    assert request.images is not None
    return nomination_view(request.model, request.images, request.pixels, recorded=request.recorded)
