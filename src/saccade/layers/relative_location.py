"""Dense relative localization (DRLoc): predict the offset between two cells of a grid from their features."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .numerics import upcast

Loss = Literal["l1", "cross_entropy", "gaussian", "square"]
Unit = Literal["cells", "sides", "span"]
LOSSES = ("l1", "cross_entropy", "gaussian", "square")
UNITS = ("cells", "sides", "span")

Grid = tuple[int, int]
EPS = 1e-8  # of the variance, as in the published code
MOST_BY_PRODUCT = 1024  # cells up to which they are picked by a matrix product


class PairLocator(nn.Module):
    """MLP that reads the offset between two cells from their features.

    Args:
        dim: width of a cell's features.
        classes: number of offsets along rows (u) and along columns (v); None regresses the two offsets instead.
        hidden_dim: width of the hidden layers.
        third_layer: before the classes, a third hidden layer without activation, as in the published code; the paper
            has none.
    """

    def __init__(
        self, dim: int, *, classes: tuple[int, int] | None = None, hidden_dim: int = 512, third_layer: bool = True
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, hidden_dim)
        # One name in checkpoints for the regression's output, the published code's third hidden layer, or nothing (the
        # classes of table 15).
        self.fc3: nn.Module = nn.Identity()
        if classes is None:
            self.fc3 = nn.Linear(hidden_dim, 2)
        elif third_layer:
            self.fc3 = nn.Linear(hidden_dim, hidden_dim)
        # Output layers of the classes: p_u of eq. 5, along rows, and p_v, along columns.
        self.axes = nn.ModuleList(nn.Linear(hidden_dim, count) for count in classes or ())

    def forward(self, cells: Tensor, pairs: Tensor) -> Tensor | list[Tensor]:
        """Predict offsets.

        Args:
            cells: features of the grid's cells in row-major order, B, N, dim.
            pairs: indices of the first and second cell, B, M, 2.

        Returns:
            Offsets along rows and columns, B, M, 2, or the logits of each, B, M, classes.
        """
        x = F.relu(self._first_layer(cells, pairs))
        x = self.fc3(F.relu(self.fc2(x)))
        return [output(x) for output in self.axes] if self.axes else x

    def _first_layer(self, cells: Tensor, pairs: Tensor) -> Tensor:
        """Return the first layer of concatenated pairs, B, M, hidden_dim.

        W [e1; e2] = W1 e1 + W2 e2, so where there are more pairs than cells, W1 and W2 are applied to every cell once.
        """
        if pairs.shape[1] <= cells.shape[1]:
            return self.fc1(take(cells, pairs.flatten(1)).unflatten(1, (-1, 2)).flatten(2))
        weights = self.fc1.weight.unflatten(1, (2, -1)).transpose(0, 1)  # W1, W2: 2, hidden_dim, dim
        mapped = F.linear(cells, weights.flatten(0, 1)).unflatten(2, (2, -1))  # W1 e, W2 e: B, N, 2, hidden_dim
        chosen = pairs.unsqueeze(2) == torch.arange(cells.shape[1], device=pairs.device).unsqueeze(1)  # B, M, N, 2
        return torch.baddbmm(self.fc1.bias, chosen.flatten(2).to(mapped.dtype), mapped.flatten(1, 2))


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows B, N, C of each sample at B, M indices; B, M, C.

    By a product where that is affordable: its gradient sums in the same order every time, also on CUDA and compiled,
    where that of indexing need not.
    """
    if rows.shape[1] <= MOST_BY_PRODUCT:
        chosen = index.unsqueeze(-1) == torch.arange(rows.shape[1], device=index.device)
        return chosen.to(rows.dtype) @ rows
    sample = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return rows[sample, index]


def draw_pairs(
    batch: int, pairs: int, *, device: torch.device | str, generator: torch.Generator | None = None
) -> Tensor:
    """Draw pairs of cells, uniformly and with replacement, for grids of any size.

    Returns:
        62-bit numbers, B, pairs, 2; `% cells` makes them indices into a grid of so many cells.
    """
    # Beside 2**62 any number of cells is so small that its remainders are equally likely, to 1e-15 or so.
    return torch.randint(2**62, (batch, pairs, 2), device=device, generator=generator)


def offsets(
    pairs: Tensor, grid: Grid, *, signed: bool = False, unit: Unit = "cells", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return how far apart the cells of each pair lie, by row index (u) and by column index (v).

    Args:
        pairs: indices of first and second cell, B, M, 2.
        grid: rows and columns.
        signed: keep the direction (eq. 3 and 4). Except in "sides", k - 1 is added so that no target is negative
            (published code): 2k - 1 classes, as -k and k of the 2k + 1 of eq. 4 never occur.
        unit: "cells" counts cells (eq. 4; published code), "sides" divides by k, the grid's side (eq. 1 and 3), "span"
            by the largest offset, to reach from 0 to 1 (not in the paper; the published code has it but never asks).
        dtype: of offsets in other units than "cells", in which they are integers.

    Returns:
        B, M, 2.
    """
    width = grid[1]  # of a row: the index of a cell is row * width + column
    places = torch.stack([pairs // width, pairs % width], -1)  # B, M, cell, axis
    offset = places[:, :, 0] - places[:, :, 1]
    offset = offset if signed else offset.abs()
    if unit == "cells" and not signed:
        return offset  # the published code's target
    # (rows, columns), built on the device without a copy from the host
    sides = grid[0] + (grid[1] - grid[0]) * torch.arange(2, device=pairs.device)
    if unit == "sides":
        return offset.to(dtype) / sides  # eq. 1; eq. 3 where signed
    shift = sides - 1 if signed else 0
    return offset + shift if unit == "cells" else (offset + shift).to(dtype) / (sides - 1 + shift).clamp_min(1)


def locate_loss(
    predicted: Tensor | list[Tensor],
    target: Tensor,
    *,
    loss: Loss = "l1",
    prior: float = 0.001,
    prior_on: Literal["variance", "deviation"] = "variance",
) -> Tensor:
    """Compare predicted offsets with true ones, averaged over pairs and images (eq. 5 and 6 sum over images).

    Args:
        predicted: of `PairLocator`: B, M, 2 for "l1", else logits for rows and for columns, B, M, classes.
        target: of `offsets`, B, M, 2; in cells except for "l1".
        loss: "l1" averages over the axes (L1Loss of figure 2), the others add them up: "cross_entropy" is eq. 5,
            "gaussian" eq. 6; "square" is the squared error of mu (not in the paper; unused in the published code).
        prior: weight of the logarithm in "gaussian", alpha of eq. 6.
        prior_on: what it takes the logarithm of, the "variance" (published code) or the "deviation" sigma (the paper).
    """
    if isinstance(predicted, Tensor):
        return (upcast(predicted) - target).abs().mean()
    alpha = prior if prior_on == "variance" else prior / 2  # of log(sigma^2) = 2 log(sigma)
    rows, columns = (
        _loss_of_axis(upcast(logits), offset, loss, alpha)
        for logits, offset in zip(predicted, target.unbind(-1), strict=True)
    )
    return rows + columns


def _loss_of_axis(logits: Tensor, target: Tensor, loss: Loss, alpha: float) -> Tensor:
    if loss == "cross_entropy":
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())  # eq. 5, for one axis
    probabilities = logits.softmax(-1)
    offset = torch.arange(logits.shape[-1], device=logits.device, dtype=logits.dtype)
    mean = probabilities @ offset  # mu
    error = (mean - target) ** 2
    if loss == "square":
        return error.mean()
    variance = (probabilities * (offset - mean.unsqueeze(-1)) ** 2).sum(-1) + EPS
    return (error / variance + alpha * variance.log()).mean()  # eq. 6, for one axis


def pool_map(x: Tensor, side: int) -> Tensor:
    """Halve a map, B, C, H, W, until its side is nearest to `side`, by averages of 3x3 that leave the padding out."""
    while shrinks((x.shape[2], x.shape[3]), side):
        x = F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)
    return x


def pooled_grid(grid: Grid, side: int | None) -> Grid:
    """Return the rows and columns that `pool_map` leaves; None pools nothing."""
    while side is not None and shrinks(grid, side):
        grid = ((grid[0] + 1) // 2, (grid[1] + 1) // 2)
    return grid


def shrinks(grid: Grid, side: int) -> bool:
    """Whether half a grid's side (the root of its area) is nearer to `side`, as a ratio, than the whole."""
    return grid[0] * grid[1] > 2 * side * side
