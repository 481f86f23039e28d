"""How alike layers represent pictures: linear CKA, with the unbiased estimate of HSIC by minibatches or the biased."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..layers.numerics import upcast
from ..plugins.tokens import HostError, find_host
from .listening import eval_mode, listen

FEWEST = 4  # pictures: the unbiased estimate divides by n - 3
ADVISED = 32
Estimator = Literal["unbiased", "biased"]
BLOCKS = ("Block", "Bottleneck", "InvertedResidual", "EncoderLayer")  # classes of a network's steps, by their names


@dataclass(frozen=True)
class Similarity:
    """CKA between all pairs of layers.

    Args:
        rows: names of one model's layers, in order.
        columns: names of the other's, or of the same one's.
        values: rows, columns; an unbiased estimate, which may pass 0 and 1 by its error, or the biased one.
        errors: standard errors of the values by the jackknife over batches; None where there is one batch.
        pictures: how many were used.
        batches: in how many batches.
        left_out: layers whose features do not belong to one picture each.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray | None
    pictures: int
    batches: int
    left_out: tuple[str, ...] = ()


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
    """Compute CKA between the layers of a model, or between those of two models.

    A layer's features are all its numbers for a picture, all tokens and channels, in one row; nothing is pooled.

    Args:
        model: the first model.
        images: at least 4, as it takes them, N, C, H, W.
        other: the second model; the first itself if not given.
        other_images: the same pictures as the second model takes them, if otherwise.
        batch_size: pictures at a time, at least 4; a larger batch has a smaller error. 32 if not given, and all at once
            for "biased", as its paper has it.
        layers: names of the first model's layers, and of the second's; its blocks if not given.
        estimator: of HSIC: "unbiased", or "biased", that of the NomMer paper (supplement E.2), which is too high for
            few pictures and many features.
    """
    if estimator not in ("unbiased", "biased"):
        raise ValueError(f"estimator={estimator!r} was given; allowed are 'unbiased' and 'biased'")
    if batch_size is None:
        batch_size = 32 if estimator == "unbiased" else max(len(images), FEWEST)
    measure = hsic if estimator == "unbiased" else biased_hsic
    if len(images) < FEWEST or batch_size < FEWEST:
        raise ValueError(
            f"{len(images)} pictures in batches of {batch_size} were given; the unbiased estimate of CKA needs at "
            f"least {FEWEST} in a batch, and {ADVISED} or more to be of use"
        )
    if other_images is not None and len(other_images) != len(images):
        raise ValueError(f"{len(images)} and {len(other_images)} pictures were given; both models need the same ones")
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
        pictures=len(images),
        batches=count,
        left_out=(*rows.left_out, *(columns.left_out if columns is not None else ())),
    )


def hsic(one: Tensor, other: Tensor) -> Tensor:
    """Return the unbiased estimate of HSIC of two kernels (Song et al. 2012, eq. 5).

    Args:
        one: kernel matrices ..., n, n; their diagonals do not count.
        other: of the same pictures.
    """
    n = one.shape[-1]
    one, other = (x.masked_fill(torch.eye(n, dtype=torch.bool, device=x.device), 0) for x in (one, other))
    trace = (one * other).sum((-2, -1))
    sums = one.sum((-2, -1)) * other.sum((-2, -1)) / ((n - 1) * (n - 2))
    mixed = (one.sum(-1) * other.sum(-1)).sum(-1) * (2 / (n - 2))
    return (trace + sums - mixed) / (n * (n - 3))


def biased_hsic(one: Tensor, other: Tensor) -> Tensor:
    """Return the biased estimate of HSIC of two kernels: the product of both, centred, over (n - 1)².

    Args:
        one: kernel matrices ..., n, n.
        other: of the same pictures.
    """
    n = one.shape[-1]
    centre = torch.eye(n, dtype=one.dtype, device=one.device) - 1 / n
    return ((centre @ one @ centre) * (centre @ other @ centre)).sum((-2, -1)) / (n - 1) ** 2


def linear_kernel(features: Tensor) -> Tensor:
    """Return the kernel n, n of features n, ..., in float64; centring changes nothing but keeps the digits."""
    flat = upcast(features).flatten(1)
    flat = flat - flat.mean(0)
    return (flat @ flat.T).double().cpu()


def find_layers(model: nn.Module) -> list[str]:
    """Return the paths of a model's blocks in order; of a network without transformer blocks, of its residual ones."""
    try:
        blocks = [block.path for block in find_host(model).blocks]
    except HostError:
        blocks = []
    if len(blocks) > 1:
        return blocks
    found: list[str] = []
    for path, module in model.named_modules():
        step = path and any(word in type(module).__name__ for word in BLOCKS) and not isinstance(module, nn.Sequential)
        if step and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    if len(found) > 1:
        return found
    info: Any = getattr(model, "feature_info", None)
    if info is not None and not hasattr(info, "module_name"):
        known = dict(model.named_modules())
        return [entry["module"] for entry in info if entry["module"] in known]
    return [name for name, _ in model.named_children()]


class _Features:
    """Kernels of a model's layers, batch by batch."""

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
        """Return the kernels of all layers, L, n, n; a layer that does not keep pictures apart is dropped for good."""
        with eval_mode(self.model), listen(self.modules) as heard:
            self.model(images)
        kept, kernels = [], []
        for name, module in zip(self.names, self.modules, strict=True):
            features = heard.get(module)
            if not isinstance(features, Tensor) or features.ndim < 2 or features.shape[0] % len(images):
                self.left_out.append(name)
                continue
            kept.append((name, module))
            kernels.append(linear_kernel(features.reshape(len(images), -1)))
        if not kernels:
            raise ValueError(f"no layer of {type(self.model).__name__} gives features that belong to one picture each")
        self.names, self.modules = [name for name, _ in kept], [module for _, module in kept]
        return torch.stack(kernels)


def _ratio(cross: Tensor, one: Tensor, two: Tensor) -> Tensor:
    scale = (one.clamp_min(0)[..., :, None] * two.clamp_min(0)[..., None, :]).sqrt()
    return torch.where(scale > 0, cross / scale, torch.nan)


def _jackknife(cross: Tensor, one: Tensor, two: Tensor) -> np.ndarray | None:
    """Return standard errors from leaving out one batch at a time."""
    count = len(cross)
    if count < 2:
        return None
    without = [_ratio(*(x.sum(0) - x[place] for x in (cross, one, two))) for place in range(count)]
    spread = torch.stack(without)
    return ((spread - spread.mean(0)).square().sum(0) * (count - 1) / count).sqrt().numpy()
