"""Interpret attention maps: the meaning of their axes, and the grid of their tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from ..plugins.tokens import (
    Host,
    HostError,
    count_objects,
    find_host,
    guess_grid,
    overlaps_windows,
    reorders_tokens,
)

Kind = Literal["tokens", "windows", "slots"]


class TokenGrid(NamedTuple):
    """Positions of a map's tokens."""

    kind: Kind  # tokens of the image, of a window, or slots, which have no position
    block: str | None = None  # path of its transformer block; None outside of one
    prefix: tuple[int, int] = (0, 0)  # numbers of prefix tokens, of queries and keys
    # rows and columns of the queries; None if unknown or not a grid
    query_grid: tuple[int, int] | None = None
    key_grid: tuple[int, int] | None = None  # likewise of the keys
    trouble: str | None = None  # reason for a missing grid


class Axes(NamedTuple):
    """Meaning of a map's leading axes."""

    split: tuple[int, int, int]  # sizes after splitting combined axes
    order: tuple[int, int, int] = (0, 1, 2)  # positions of batch, windows and heads

    @property
    def windows(self) -> int:
        """Number of windows in an image."""
        return self.split[self.order[1]]

    def apply(self, weights: Tensor) -> Tensor:
        """Return B, W, H, N, M."""
        return weights.reshape(*self.split, *weights.shape[-2:]).permute(*self.order, 3, 4)


class MapShape(NamedTuple):
    """Numbers of windows, queries and keys of a map."""

    windows: int
    queries: int
    keys: int


def split_axes(shape: Sequence[int], *, batch: int, heads: int | None) -> Axes | None:
    """Identify batch, windows and heads among the leading axes of a map ..., N, M; None if ambiguous."""
    lead = tuple(shape[:-2])
    if not lead or not batch or math.prod(lead) % batch:
        return None
    if len(lead) == 1:  # B * W * H
        inner = lead[0] // batch
        count = heads if heads and inner % heads == 0 else inner
        return Axes((batch, inner // count, count))
    if len(lead) == 2:
        if lead[0] % batch == 0 and heads in (None, lead[1]):  # B * W, H
            return Axes((batch, lead[0] // batch, lead[1]))
        if heads and lead[0] == batch and lead[1] % heads == 0:  # B, W * H
            return Axes((batch, lead[1] // heads, heads))
        return Axes((batch, heads, lead[1]), (0, 2, 1)) if heads and lead[0] == batch * heads else None  # B * H, W
    if len(lead) == 3 and lead[0] == batch and heads is not None and heads in lead[1:]:
        return Axes((lead[0], lead[1], lead[2]), (0, 1, 2) if lead[2] == heads else (0, 2, 1))
    return None


@dataclass
class Layers:
    """Facts on a running model."""

    host: Host | None  # its blocks; None if unknown
    batch: int  # batch size
    size: tuple[int, int] | None  # height and width of images; None for text
    reordered: bool = False  # whether tokens are not in row-major order
    # number of a detector's object queries, which have no position
    objects: int = 0
    # tokens and channels of each module's input, by id
    entered: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, inputs: Sequence[Any]) -> "Layers":
        """Gather facts on a model and its inputs."""
        try:
            host = find_host(model)
        except HostError:
            host = None
        first = _first_tensor(inputs)
        listed = next((value for value in inputs if isinstance(value, list | tuple)), None)
        batch = 0 if first is None else first.shape[0]
        if listed is not None and first is not None and first.ndim == 3:  # a detector's list of images, each C, H, W
            batch = len(listed)
        images = [x for x in inputs if isinstance(x, Tensor) and x.ndim == 4]
        images += [x for x in listed or () if isinstance(x, Tensor) and x.ndim == 3]
        size = (images[0].shape[-2], images[0].shape[-1]) if images else None
        return cls(host, batch, size, reorders_tokens(model), count_objects(model))

    def locate(self, name: str, module: nn.Module, shape: MapShape, *, slots: bool) -> TokenGrid:
        """Return the positions of a map's tokens."""
        blocks = self.host.blocks if self.host is not None else ()
        block = next((block for block in blocks if f"{name}.".startswith(f"{block.path}.")), None)
        path = None if block is None else block.path
        if slots:
            return TokenGrid("slots", path, trouble="slots have no position in the image")
        kind: Kind = "windows" if shape.windows > 1 else "tokens"
        if self.reordered:
            return TokenGrid(kind, path, trouble="its tokens do not stay in rows and columns")
        if self.size is None or (self.host is not None and self.host.text):
            return TokenGrid(kind, path, trouble="words have no position in an image")
        if self.objects and (shape.keys == self.objects or _grid(shape.keys - self.objects, (0, 1), self.size)[1]):
            return TokenGrid(kind, path, trouble="its keys include object queries, which have no position in the image")
        if overlaps_windows(module) or (kind == "windows" and shape.queries != shape.keys):
            return TokenGrid(kind, path, trouble="its query windows differ from its key windows")
        size = self.size if kind == "tokens" else (1, 1)
        inner = block.prefix_tokens if block is not None else 0
        final = self.host.output_prefix if self.host is not None else 0
        counts = list(dict.fromkeys((inner, final, 0)))
        prefix_k, key_grid = _grid(shape.keys, counts, size)
        prefix_q, query_grid = (
            (prefix_k, key_grid) if shape.queries == shape.keys else _grid(shape.queries, counts, size)
        )
        if self.objects and shape.queries == self.objects:
            return TokenGrid(
                kind,
                path,
                (0, prefix_k),
                None,
                key_grid,
                "its queries are object queries, which have no position in the image",
            )
        if query_grid == (1, 1) and shape.queries < shape.keys:  # only the class token is a query
            prefix_q, query_grid = shape.queries, None
        trouble = None if key_grid and query_grid else "the grid of its tokens cannot be determined"
        if key_grid is not None and query_grid is None and prefix_q == shape.queries:
            trouble = "only the class token is a query here, and it has no position"
        return TokenGrid(kind, path, (prefix_q, prefix_k), query_grid, key_grid, trouble)


def _grid(count: int, prefixes: Sequence[int], size: tuple[int, int]) -> tuple[int, tuple[int, int] | None]:
    for prefix in prefixes:
        if count > prefix:
            try:
                return prefix, guess_grid(count - prefix, size)
            except HostError:
                continue
    return 0, None


def _first_tensor(values: Sequence[Any]) -> Tensor | None:
    for value in values:
        inner = _first_tensor(value) if isinstance(value, list | tuple) else value
        if isinstance(inner, Mapping):
            inner = _first_tensor(list(inner.values()))
        if isinstance(inner, Tensor) and inner.ndim:
            return inner
    return None
