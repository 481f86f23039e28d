"""What is measured of attention maps, a few rows at a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .density import attended_distance, cell_centres, city_block, entropy, jacobian_norm, relative_distance
from .places import Axes, Place

CHUNK = 1 << 24  # weights that are in memory at a time
KEPT = 1 << 26  # weights of a map that is kept whole


@dataclass(frozen=True)
class AttentionMap:
    """What was measured of the attention of one module; B pictures, W windows of each, H heads, N queries, M keys.

    Args:
        name: path of the module.
        label: its name, with the number of the call where it ran more than once.
        depth: how many maps were computed before it.
        place: where its tokens lie.
        fused: it was computed beside a fused kernel; else it is what the model itself computed.
        scale: factor of the products before the softmax, where it is known.
        entropy: in nats, B, W, H, N.
        jacobian: nuclear norm of the softmax's Jacobian, B, W, H, N.
        attended: distance from each query on the grid to its keys, in sides of the picture or the window, B, W, H, n.
        relative: the same as the Context Broadcasting paper defines it, B, W, H.
        received: mean weight of each key over all queries, B, W, H, M.
        first: weights of the first query, B, W, H, M; None where it is a word's.
        weights: the whole maps of one picture, W, H, N, M; None where they are not kept.
    """

    name: str
    label: str
    depth: int
    place: Place
    fused: bool
    scale: float | None
    entropy: Tensor
    jacobian: Tensor
    attended: Tensor | None
    relative: Tensor | None
    received: Tensor
    first: Tensor | None
    weights: Tensor | None

    @property
    def windows(self) -> int:
        """How many maps there are of a picture in each head."""
        return self.entropy.shape[1]

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return self.entropy.shape[2]

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return self.entropy.shape[3]

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return self.received.shape[3]

    @property
    def bound(self) -> float:
        """The largest entropy there can be, that of uniform attention."""
        return math.log(self.keys)


@dataclass
class Measured:
    """Numbers of one map; see `AttentionMap`."""

    place: Place
    numbers: dict[str, Tensor | None]

    def finish(self, *, name: str, call: int, depth: int, fused: bool, scale: float | None) -> AttentionMap:
        """Give the numbers a name."""
        label = f"{name or 'model'}#{call + 1}" if call else name or "model"
        shared: dict[str, Any] = {"name": name, "label": label, "depth": depth, "fused": fused, "scale": scale}
        return AttentionMap(**shared, place=self.place, **self.numbers)  # type: ignore[arg-type]


def measure(rows: Callable[[int, int], Tensor], axes: Axes, *, place: Place, keep: int | None) -> Measured:
    """Measure a map a few queries at a time.

    Args:
        rows: returns the weights ..., n, M of queries from a first to before a last one.
        axes: what the axes before the last two are.
        place: where the tokens lie.
        keep: the picture whose maps are to be kept; None keeps none.
    """
    first = axes.apply(rows(0, 1))  # B, W, H, 1, M
    lead, keys = math.prod(first.shape[:3]), first.shape[-1]
    step = max(CHUNK // (lead * keys), 1)
    apart = _distances(place, keys, first.device)
    parts: list[dict[str, Tensor]] = []
    begin, whole = 0, []
    while True:
        weights = axes.apply(rows(begin, begin + step))
        if not weights.shape[-2]:
            break
        parts.append(_numbers(weights, begin, place, apart))
        if keep is not None:
            whole.append(weights[keep].cpu())
        begin += weights.shape[-2]
        if weights.shape[-2] < step:
            break
    joined: dict[str, Tensor | None] = {
        key: torch.cat([part[key] for part in parts], -1).cpu() for key in ("entropy", "jacobian")
    }
    joined["received"] = (sum(part["received"] for part in parts) / begin).cpu()  # type: ignore[union-attr]
    joined["first"] = first[..., 0, :].cpu() if place.prefix[0] else None
    joined["attended"] = joined["relative"] = None
    if apart is not None:
        joined["attended"] = torch.cat([part["attended"] for part in parts], -1).cpu()
        if place.query_grid == place.key_grid and keys - place.prefix[1] > 1:
            joined["relative"] = sum(part["relative"] for part in parts).cpu()  # type: ignore[union-attr]
    kept = keep is not None and sum(part.numel() for part in whole) <= KEPT
    joined["weights"] = torch.cat(whole, -2) if kept else None
    return Measured(place, joined)


def _distances(place: Place, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the distances of queries on the grid to keys on it: between centres, and as the paper has them."""
    if place.query_grid is None or place.key_grid is None or keys == place.prefix[1]:
        return None
    found = []
    for ends in (False, True):
        one, other = (cell_centres(grid, ends=ends).to(device) for grid in (place.query_grid, place.key_grid))
        found.append(city_block(one, other))
    return found[0], found[1]


def _numbers(weights: Tensor, begin: int, place: Place, apart: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    numbers = {
        "entropy": entropy(weights),
        "jacobian": jacobian_norm(weights),
        "received": weights.nan_to_num().sum(-2),
    }
    if apart is not None:
        skip = max(place.prefix[0] - begin, 0)
        spatial = weights[..., skip:, place.prefix[1] :]
        start = begin + skip - place.prefix[0]
        centres, ends = (x[start : start + spatial.shape[-2]] for x in apart)
        numbers["attended"] = attended_distance(spatial, centres)
        numbers["relative"] = relative_distance(spatial, ends)
    return numbers
