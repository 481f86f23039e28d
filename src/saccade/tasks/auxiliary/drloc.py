"""Dense relative localization (DRLoc): an auxiliary loss that predicts the offset between pairs of grid cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...data.feed import Batch
from ...layers.numerics import upcast
from ...layers.relative_location import (
    LOSSES,
    UNITS,
    Grid,
    Loss,
    PairLocator,
    Unit,
    draw_pairs,
    locate_loss,
    offsets,
    pool_map,
    pooled_grid,
    shrinks,
)
from ...plugins.registry import register_plugin
from ...plugins.tokens import HostError, Layout, find_host
from ...settings.values import require_choice
from ..classification.task import Classify
from ..task import Task
from .around import Around
from .grids import GridRecorder, Grids, GridSource, RecordedGrid, image_size, move_like

RISE = 20  # epochs of the ramp, as in the published code
Features = Callable[[nn.Module, Tensor], tuple[Any, Tensor]]


@register_plugin("drloc")
class RelativeLocalization(Around):
    """Adds the localization loss to a classifier or another task.

    Variants: `loss="l1"` (the paper's choice), `signed=True`, `loss="cross_entropy"`, `loss="gaussian"`, and any of
        them
    on every block with `grids="blocks"`. Defaults of weight, pooling and norm are those published for the backbone. The
    localization MLPs are part of the task, not of `task.model`.

    Args:
        model: any model with a grid of features, or a task around one.
        pairs: number of pairs of cells per image and grid.
        weight: weight of the localization loss; default: 0.5, but 0.1 for T2T-ViT and CvT and 0.01 for ViT.
        schedule: "triangle" (published) increases from 0 over `ramp_epochs` and decreases to 0 at the end, according to
            `set_epoch`; or "constant". The full weight is used until `set_epoch` is called.
        ramp_epochs: length of the increase; default: 20 (published), but at most a fifth of the run.
        loss: "l1", "cross_entropy", "gaussian" (regression with a Gaussian prior) or "square" (without).
        signed: predict signed offsets; default: only with classes.
        unit: unit of offsets for "l1": "cells" (published), "sides" of the grid (the paper) or its "span".
        prior: weight of the variance in "gaussian".
        prior_on: argument of its logarithm, "variance" (published) or "deviation" (the paper).
        grids: "last", or a loss on each of the "stages" (for Swin after each merging, as published) or "blocks".
        pool: an int halves larger grids until their side is nearest to it; None: no pooling; "auto": None for Swin, ViT
            and ResNet, 7 for others, as published. The paper also pools ViT's to 7.
        norm: take the last grid after the final norm; default: only for T2T-ViT.
        cells: rows and columns of the largest grid, which determine the number of classes; default: the backbone's at
            its own image size, or 14 (twice `pool`) if it is pooled. The published code has 14 for all but Swin; one
            more than the grid's gives the paper's number of classes.
        hidden_dim: width of the localization MLP.
        third_layer: a third hidden layer for classes, as published; the paper has none.
        dim: width of the features, if not detected.
        features: path of the module that returns the grid, or a function of model and images that returns output and
            features, if not detected.
        label_smoothing: label smoothing of the classification, if `model` is not a task.
        blocks: paths of the backbone's blocks, if not detected.
        grid: rows and columns of the tokens, if not detected.
        prefix_tokens: number of tokens before those of the grid, if not detected.
        layout: layout of the features, if not detected.
    """

    strength: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        pairs: int = 64,
        weight: float | None = None,
        schedule: Literal["triangle", "constant"] = "triangle",
        ramp_epochs: int | None = None,
        loss: Loss = "l1",
        signed: bool | None = None,
        unit: Unit = "cells",
        prior: float = 0.001,
        prior_on: Literal["variance", "deviation"] = "variance",
        grids: Grids = "last",
        pool: int | Literal["auto"] | None = "auto",
        norm: bool | None = None,
        cells: int | tuple[int, int] | None = None,
        hidden_dim: int = 512,
        third_layer: bool = True,
        dim: int | None = None,
        features: str | Features | None = None,
        label_smoothing: float = 0.0,
        blocks: str | Sequence[str] | None = None,
        grid: tuple[int, int] | None = None,
        prefix_tokens: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        require_choice("schedule", schedule, ("triangle", "constant"))
        require_choice("loss", loss, LOSSES)
        require_choice("unit", unit, UNITS if loss == "l1" else ("cells",))
        require_choice("prior_on", prior_on, ("variance", "deviation"))
        require_choice("grids", grids, ("last", "stages", "blocks"))
        if pairs < 1:
            raise ValueError(f"pairs={pairs} was given; at least one pair of cells is needed")
        super().__init__(model if isinstance(model, Task) else Classify(model, label_smoothing=label_smoothing))
        recipe = _recipe(self.model)
        self.weight = recipe.weight if weight is None else weight
        self.schedule, self.ramp_epochs = schedule, ramp_epochs
        self.pairs, self.kind, self.unit = pairs, loss, unit
        self.signed = loss != "l1" if signed is None else signed
        self.prior, self.prior_on = prior, prior_on
        self.pool = recipe.pool if pool == "auto" else pool
        self.features = features if callable(features) else None
        if self.features is not None and type(self.base) is not Classify:
            raise ValueError("features= as a function replaces the call of the model; within a task, give a path")
        self.grid_recorder = GridRecorder(
            find_host(self.model, blocks=blocks, grid=grid, prefix_tokens=prefix_tokens, layout=layout),
            grids,
            norm=recipe.norm if norm is None else norm,
            path=features if isinstance(features, str) else "" if features else None,
            dim=dim,
            prefix_tokens=prefix_tokens,
            layout=layout,
        )
        self.locators = nn.ModuleList(
            PairLocator(
                source.dim,
                classes=None if loss == "l1" else self._classes(source, cells),
                hidden_dim=hidden_dim,
                third_layer=third_layer,
            )
            for source in self.grid_recorder.sources
        )
        # A tensor, so that changing it does not trigger recompilation.
        self.register_buffer("strength", torch.tensor(float(self.weight)), persistent=False)
        move_like(self.locators, self.model)
        self.strength = self.strength.to(next(self.locators.parameters()).device)
        if self.features is None:
            self.grid_recorder.add_hooks()

    def loss(
        self,
        batch: Batch,
        *,
        generator: torch.Generator | None = None,
        pairs: Tensor | None = None,
        localize: bool | None = None,
        **draws: Any,
    ) -> dict[str, Tensor]:
        """Compute the task's loss; in training, add the localization loss.

        Args:
            batch: batch of the wrapped task; without targets, only localization is trained.
            generator: random generator for pairs, on the images' device; default: the device's.
            pairs: indices of first and second cells, grids, B, M, 2, modulo the number of cells; see `draw`.
            localize: whether to localize; default: in training.

        Returns:
            The result of the wrapped task, with the weighted "localization" added to "loss".
        """
        if not (self.training if localize is None else localize):
            return self.base(batch, generator=generator, **draws)
        images = batch["image"]
        if self.features is not None:
            assert isinstance(self.base, Classify)
            answer, features = self.features(self.model, images)
            result = self.base.score(answer, batch.get("target"))
            recorded: list[Tensor | None] = [features]
        else:
            with self.grid_recorder.record() as recorded:
                result = self.base(batch, generator=generator, **draws)
        size = (images.shape[-2], images.shape[-1])
        found = [self.grid_recorder.read(index, features, size) for index, features in enumerate(recorded)]
        if pairs is None:
            pairs = self._draw(images.shape[0], device=found[0].tokens.device, generator=generator)
        elif pairs.ndim != 4 or len(pairs) != len(found):
            shape = f"{len(found)}, {images.shape[0]}, number, 2"
            raise ValueError(f"pairs of shape {tuple(pairs.shape)} were given; give one set of pairs per grid: {shape}")
        losses = [self._locate(*each) for each in zip(self.locators, found, pairs, strict=True)]
        localization = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        loss = self.strength * localization
        if "loss" in result:
            loss = result["loss"] + loss
        return {**result, "loss": loss, "localization": localization.detach()}

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw the pairs of a step on the device; compiled tasks cannot take a generator."""
        drawn = super().draw(batch_size, device=device, generator=generator)
        return {**drawn, "pairs": self._draw(batch_size, device=device, generator=generator)}

    def set_epoch(self, epoch: float, total_epochs: int) -> None:
        """Set the weight for an epoch, counted from 0, which may be fractional."""
        super().set_epoch(epoch, total_epochs)
        self.strength.fill_(self.weight_at(epoch, total_epochs))

    def weight_at(self, epoch: float, total_epochs: int) -> float:
        """Return the weight of the localization loss in an epoch."""
        if self.schedule == "constant":
            return self.weight
        rise = min(RISE, total_epochs // 5) if self.ramp_epochs is None else self.ramp_epochs
        if epoch < rise:
            return self.weight * epoch / rise
        return self.weight * max(0.0, 1 - (epoch - rise) / max(total_epochs - rise, 1))

    def release(self) -> None:
        """Remove the hooks from the backbone; the task cannot localize any more."""
        self.grid_recorder.release()

    def _draw(self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None) -> Tensor:
        count = len(self.locators)
        drawn = draw_pairs(count * batch_size, self.pairs, device=device, generator=generator)
        return drawn.unflatten(0, (count, batch_size))

    def _locate(self, locator: nn.Module, found: "RecordedGrid", pairs: Tensor) -> Tensor:
        """Return the localization loss on one grid."""
        tokens, grid, skip = found.tokens, found.grid, found.skip
        if self.pool is not None and shrinks(grid, self.pool):
            x = pool_map(tokens[:, skip:].transpose(1, 2).unflatten(2, grid), self.pool)
            tokens, grid, skip = x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3]), 0
        if grid[0] * grid[1] < 2:
            raise HostError(
                f"{self.grid_recorder.host.name} has a grid of only one cell, so nothing can be localized; use "
                "larger images, or choose a finer grid with grids='stages' or features="
            )
        pairs = pairs % (grid[0] * grid[1])
        predicted = locator(tokens, pairs + skip if skip else pairs)
        if self.kind != "l1" and any(self._offsets(n) > p.shape[-1] for n, p in zip(grid, predicted, strict=True)):
            raise ValueError(
                f"a grid has {grid[0]}x{grid[1]} cells, more than the location classes cover; pass cells=({grid[0]}, "
                f"{grid[1]}), the largest grid that will occur, or pool= to make the grid smaller"
            )
        target = offsets(pairs, grid, signed=self.signed, unit=self.unit, dtype=upcast(tokens).dtype)
        return locate_loss(predicted, target, loss=self.kind, prior=self.prior, prior_on=self.prior_on)

    def _classes(self, source: "GridSource", cells: int | Grid | None) -> tuple[int, int]:
        """Return the numbers of offsets along rows and columns."""
        if cells is None:
            grid, size, stride = self.grid_recorder.host.grid, image_size(self.model), source.stride
            if grid is None and size is not None and stride is not None:
                grid = (-(-size[0] // stride), -(-size[1] // stride))
            if grid is None:
                raise HostError(
                    f"{self.grid_recorder.host.name} does not report its grid size; for loss={self.kind!r} pass cells="
                )
            cells = pooled_grid(grid, self.pool)
            if self.pool is not None:  # sufficient for images up to twice as wide as high
                most = 2 * self.pool
                cells = (max(cells[0], min(grid[0], most)), max(cells[1], min(grid[1], most)))
        rows, columns = (cells, cells) if isinstance(cells, int) else cells
        return self._offsets(rows), self._offsets(columns)

    def _offsets(self, cells: int) -> int:
        return 2 * cells - 1 if self.signed else cells


@dataclass(frozen=True)
class Recipe:
    """Defaults of the published code for a family of backbones."""

    weight: float
    pool: int | None
    norm: bool


SWIN = Recipe(weight=0.5, pool=None, norm=False)
VIT = Recipe(weight=0.01, pool=None, norm=False)
RECIPES = {
    "SwinTransformer": SWIN,
    "SwinTransformerV2": SWIN,
    "SwinForImageClassification": SWIN,
    "VisionTransformer": VIT,
    "ViTForImageClassification": VIT,
    "T2TViT": Recipe(weight=0.1, pool=7, norm=True),
    "CvT": Recipe(weight=0.1, pool=7, norm=False),
    "ResNet": Recipe(weight=0.5, pool=None, norm=False),
}
OTHERS = Recipe(weight=0.5, pool=7, norm=False)


def _recipe(model: nn.Module) -> Recipe:
    host = getattr(model, "backbone", model)  # inside a task's head
    return next((RECIPES[kind.__name__] for kind in type(host).__mro__ if kind.__name__ in RECIPES), OTHERS)
