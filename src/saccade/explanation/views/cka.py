"""Similarity of layers: linear CKA with the unbiased minibatch estimator of HSIC, or the biased one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...building.loading import LoadedModel
from ...layers.numerics import upcast
from ...plugins.tokens import find_layers
from ...report import heat_map
from ...report.plain import to_json
from ...settings.values import require_choice
from ..recording import eval_mode, record
from ..request import Estimator, ViewRequest, register_view
from ..view import Figure, View

TITLE = "Which layers represent images similarly"
ABOUT = (
    "Centred kernel alignment (CKA) of two layers is 1 if images that are similar for one are similar for the other, "
    "and 0 if they have nothing in common; rotating or scaling a layer's features does not change it. Blocks of dark "
    "cells are stages in which little changes."
)
MIN_IMAGES = 4  # least images: the unbiased estimator divides by n - 3
ADVISED = 32


@dataclass(frozen=True)
class Similarity:
    """CKA between all pairs of layers."""

    rows: tuple[str, ...]  # layers of the first model, in order
    columns: tuple[str, ...]  # layers of the second model, or of the same
    values: np.ndarray  # rows, columns; unbiased estimates may be outside of 0..1
    # jackknife standard errors over batches; None for a single batch
    errors: np.ndarray | None
    images: int  # number of images
    batches: int  # number of batches
    left_out: tuple[str, ...] = ()  # layers that do not keep images separate


@torch.no_grad()
def cka(
    model: nn.Module,
    images: Tensor,
    *,
    other: nn.Module | None = None,
    other_images: Tensor | None = None,
    batch_size: int | None = None,
    layers: Sequence[str] | None = None,
    estimator: Estimator = "unbiased",
) -> Similarity:
    """Compute CKA between layers of a model, or of two models.

    The features of a layer are all its tokens and channels of an image, without pooling.

    Args:
        model: the first model.
        images: model inputs, N, C, H, W, at least 4.
        other: the second model; default: the first.
        other_images: the images as inputs of the second model, if different.
        batch_size: batch size, at least 4; larger batches have a smaller error. Default: 32, or all images for
            "biased", as in its paper.
        layers: layer names of both models; default: their blocks.
        estimator: HSIC estimator: "unbiased", or "biased" as in the NomMer paper (supplement E.2), which is too high
            for few images and many features.
    """
    require_choice("estimator", estimator, ("unbiased", "biased"))
    if batch_size is None:
        batch_size = 32 if estimator == "unbiased" else max(len(images), MIN_IMAGES)
    measure = hsic if estimator == "unbiased" else biased_hsic
    if len(images) < MIN_IMAGES or batch_size < MIN_IMAGES:
        raise ValueError(
            f"got {len(images)} images in batches of {batch_size}; the unbiased estimate of CKA needs at least "
            f"{MIN_IMAGES} per batch, and {ADVISED} or more to be useful"
        )
    if other_images is not None and len(other_images) != len(images):
        raise ValueError(f"got {len(images)} and {len(other_images)} images; both models need the same images")
    count = max(len(images) // batch_size, 1)
    rows, columns = _Features(model, layers), None if other is None else _Features(other, layers)
    cross, one, two = [], [], []
    for batch, second in zip(
        images.tensor_split(count), (images if other_images is None else other_images).tensor_split(count), strict=True
    ):
        left = rows.grams(batch)
        right = left if columns is None else columns.grams(second)
        cross.append(measure(left[:, None], right[None]))
        one.append(measure(left, left))
        two.append(one[-1] if columns is None else measure(right, right))
    values = _ratio(torch.stack(cross).sum(0), torch.stack(one).sum(0), torch.stack(two).sum(0))
    return Similarity(
        rows=tuple(rows.names),
        columns=tuple((columns or rows).names),
        values=values.numpy(),
        errors=_jackknife(torch.stack(cross), torch.stack(one), torch.stack(two)),
        images=len(images),
        batches=count,
        left_out=(*rows.left_out, *(columns.left_out if columns is not None else ())),
    )


def hsic(one: Tensor, other: Tensor) -> Tensor:
    """Return the unbiased HSIC of kernels ..., n, n, without their diagonals (Song et al. 2012, eq. 5)."""
    n = one.shape[-1]
    one, other = (x.masked_fill(torch.eye(n, dtype=torch.bool, device=x.device), 0) for x in (one, other))
    trace = (one * other).sum((-2, -1))
    sums = one.sum((-2, -1)) * other.sum((-2, -1)) / ((n - 1) * (n - 2))
    mixed = (one.sum(-1) * other.sum(-1)).sum(-1) * (2 / (n - 2))
    return (trace + sums - mixed) / (n * (n - 3))


def biased_hsic(one: Tensor, other: Tensor) -> Tensor:
    """Return the biased HSIC of kernels ..., n, n: the centred product over (n - 1)²."""
    n = one.shape[-1]
    centre = torch.eye(n, dtype=one.dtype, device=one.device) - 1 / n
    return ((centre @ one @ centre) * (centre @ other @ centre)).sum((-2, -1)) / (n - 1) ** 2


def linear_kernel(features: Tensor) -> Tensor:
    """Return the linear kernel n, n of features n, ..., in float64; features are centred for precision."""
    flat = upcast(features).flatten(1)
    flat = flat - flat.mean(0)
    return (flat @ flat.T).double().cpu()


class _Features:
    """Computes kernels of a model's layers, batch by batch."""

    def __init__(self, model: nn.Module, layers: Sequence[str] | None) -> None:
        known = dict(model.named_modules())
        self.model = model
        self.names = [name for name in (layers or find_layers(model)) if name in known]
        self.modules = [known[name] for name in self.names]
        self.left_out: list[str] = []
        if len(self.names) < 1:
            raise ValueError(
                f"{type(model).__name__} has no layers named {layers}; its blocks are {find_layers(model)}"
            )

    def grams(self, images: Tensor) -> Tensor:
        """Return the kernels of all layers, L, n, n; layers that do not keep images separate are dropped."""
        with eval_mode(self.model), record(self.modules) as recorded:
            self.model(images)
        kept, kernels = [], []
        for name, module in zip(self.names, self.modules, strict=True):
            features = recorded.get(module)
            if not isinstance(features, Tensor) or features.ndim < 2 or features.shape[0] % len(images):
                self.left_out.append(name)
                continue
            kept.append((name, module))
            kernels.append(linear_kernel(features.reshape(len(images), -1)))
        if not kernels:
            raise ValueError(f"no layer of {type(self.model).__name__} returns features that belong to single images")
        self.names, self.modules = [name for name, _ in kept], [module for _, module in kept]
        return torch.stack(kernels)


def _ratio(cross: Tensor, one: Tensor, two: Tensor) -> Tensor:
    scale = (one.clamp_min(0)[..., :, None] * two.clamp_min(0)[..., None, :]).sqrt()
    return torch.where(scale > 0, cross / scale, torch.nan)


def _jackknife(cross: Tensor, one: Tensor, two: Tensor) -> np.ndarray | None:
    """Return jackknife standard errors over batches."""
    count = len(cross)
    if count < 2:
        return None
    without = [_ratio(*(x.sum(0) - x[place] for x in (cross, one, two))) for place in range(count)]
    spread = torch.stack(without)
    return ((spread - spread.mean(0)).square().sum(0) * (count - 1) / count).sqrt().numpy()


def cka_view(
    model: nn.Module,
    samples: Tensor,
    count: int,
    *,
    other: nn.Module | None = None,
    other_samples: Tensor | None = None,
    names: tuple[str, str] = ("this model", "the other model"),
    layers: Sequence[str] | None = None,
    estimator: Estimator = "unbiased",
) -> list[View]:
    """Return the view of the similarity of all pairs of layers.

    Args:
        samples: model inputs, N, C, H, W.
        count: number of images on the page.
        other: a second model to compare with.
        other_samples: the images as inputs of the second model, if different.
    """
    if len(samples) < MIN_IMAGES:
        absent = (
            f"CKA compares how layers distinguish many images, and got {len(samples)}. The unbiased estimate needs "
            f"at least {MIN_IMAGES}, and {ADVISED} to be useful: give more images, or a dataset with --data (data=)."
        )
        return [View("cka", TITLE, ABOUT, absent=absent) for _ in range(count)]
    shared: dict[str, Any] = {"layers": layers, "estimator": estimator}
    found = [(names[0], names[0], cka(model, samples, **shared))]
    if not np.isfinite(found[0][2].values).any():
        absent = "The given images are all identical to every layer, so there is nothing to compare."
        return [View("cka", TITLE, ABOUT, absent=absent) for _ in range(count)]
    if other is not None:
        shared["layers"] = None
        found.append((*names, cka(model, samples, other=other, other_images=other_samples, **shared)))
    figures = [_figure(place, *entry, estimator=estimator) for place, entry in enumerate(found)]
    return [View("cka", TITLE, ABOUT, figures=figures) for _ in range(count)]


def _figure(place: int, one: str, other: str, similarity: Similarity, *, estimator: Estimator) -> Figure:
    values = np.clip(similarity.values, 0, 1)
    error = "" if similarity.errors is None else f" Standard errors are at most {np.nanmax(similarity.errors):.2g}."
    few = " These are few images; the map is only a rough estimate." if similarity.images < ADVISED else ""
    left = f" Excluded, since they merge images: {', '.join(similarity.left_out)}." if similarity.left_out else ""
    whose = f"the layers of {one}" if one == other else f"the layers of {one} (rows) and of {other} (columns)"
    how = f"from {similarity.images} images in {similarity.batches} batches, {estimator} estimate"
    caption = f"CKA between {whose}, {how}.{error}{few}{left}"
    chart = heat_map(
        values,
        rows=brief_names(similarity.rows),
        columns=brief_names(similarity.columns),
        title=f"CKA of {one}, in percent" if one == other else f"CKA of {one} and {other}, in percent",
        row_label=one,
        column_label=other,
        texts=[[f"{100 * value:.0f}" if np.isfinite(value) else "" for value in row] for row in values],
        tips=[
            [f"{row} and {column}: {similarity.values[i, j]:.3f}" for j, column in enumerate(similarity.columns)]
            for i, row in enumerate(similarity.rows)
        ],
        alternative=_alternative(similarity),
    )
    numbers = {
        "rows": list(similarity.rows),
        "columns": list(similarity.columns),
        "values": to_json(similarity.values),
        "errors": None if similarity.errors is None else to_json(similarity.errors),
        "images": similarity.images,
        "batches": similarity.batches,
        "estimator": estimator,
    }
    return Figure(f"cka-{place}", caption, chart=chart, numbers=numbers)


def brief_names(names: Sequence[str]) -> list[str]:
    """Shorten layers' paths by their common parts: stages.0.blocks.1 becomes 0.1."""
    parts = [name.split(".") for name in names]
    shared = set.intersection(*(set(path) for path in parts))
    brief = [".".join(word for word in path if word.isdigit() or word not in shared) for path in parts]
    return brief if len(set(brief)) == len(names) and all(brief) else list(names)


def _alternative(similarity: Similarity) -> str:
    first, last = similarity.values[0, 0], similarity.values[0, -1]
    return f"First layers {first:.2f}, first and last layer {last:.2f}, mean {np.nanmean(similarity.values):.2f}."


@register_view("cka", rank=80, once=True)
def _cka(request: ViewRequest) -> list[View]:
    loaded, other = request.loaded, request.other
    assert loaded is not None

    def prepare(model: LoadedModel) -> Tensor:
        return model.normalize(torch.stack([model.frame(pixels) for pixels in request.samples]))

    names = (loaded.name, "" if other is None else other.name)
    if other is not None and names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    return cka_view(
        loaded.model,
        prepare(loaded),
        1,
        other=None if other is None else other.model,
        other_samples=None if other is None else prepare(other),
        names=names,
        layers=request.options.layers,
        estimator=request.options.estimator,
    )
