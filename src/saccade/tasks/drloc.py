"""Dense relative localization (DRLoc): besides its own task, a model tells how far apart two cells of its grid lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..layers.numerics import upcast
from ..layers.relative_location import (
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
from ..plugins.tokens import Host, HostError, Layout, find_host, guess_grid, require_blocks
from .classify import Classify
from .task import Task

Features = Callable[[nn.Module, Tensor], tuple[Any, Tensor]]
Grids = Literal["last", "stages", "blocks"]
NORM_NAMES = ("norm", "layernorm", "final_norm")


class RelativeLocalization(Task):
    """Adds the localization loss to a classifier's, or to another task's.

    The variants: `loss="l1"` (the paper's choice), with `signed=True`, `loss="cross_entropy"`, `loss="gaussian"`, and
    any of them on every block with `grids="blocks"`. What depends on the host (weight, pooling, norm) is by default as
    published for it. The localization MLPs belong to the task: they are saved with it, never with `task.model`.

    Args:
        model: any model with a grid of features, or a task around one.
        pairs: pairs of cells drawn per image and grid.
        weight: of the localization loss: 0.5, but 0.1 for T2T-ViT and CvT and 0.01 for ViT.
        schedule: "triangle" (published) grows from 0 over `ramp_epochs` and falls to 0 at the end, as `set_epoch` is
            told; "constant" does not. The weight is full until `set_epoch` is called.
        ramp_epochs: length of the rise.
        loss: "l1", "cross_entropy", "gaussian" (regression with a Gaussian prior) or "square" (without).
        signed: tell directions too; by default only with classes.
        unit: what "l1" counts offsets in: "cells" (published), "sides" of the grid (the paper) or its "span".
        prior: weight of the variance in "gaussian".
        prior_on: its logarithm's argument, "variance" (published) or "deviation" (the paper).
        grids: "last", or a loss on each of the "stages" (for Swin after each merging, as published) or "blocks".
        pool: an int halves larger grids until their side is nearest to it, None leaves them; "auto" is None for Swin,
            ViT and ResNet and 7 for others, as published. The paper pools ViT's to 7, too.
        norm: take the last grid after the final norm; by default only for T2T-ViT.
        cells: rows and columns of the largest grid whose offsets are classes; by default the host's at its own image
            size, or 14 (twice `pool`) if it is pooled. The published code has 14 for all but Swin; one more than the
            grid's gives the paper's number of classes.
        hidden_dim: width of the localization MLP.
        third_layer: a third hidden layer before classes, as published; the paper has none.
        dim: width of the features, if the host does not tell.
        features: path of the module that returns the grid, or a function of model and images that returns the answer
            and the features, if the place cannot be told.
        label_smoothing: of the classification, where `model` is not a task.
        blocks: paths of the host's blocks, if they are not found by themselves.
        grid: rows and columns of the tokens, if they cannot be told.
        prefix_tokens: how many tokens stand before those of the grid, if it cannot be told.
        layout: of the features, if it cannot be told.
    """

    strength: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        pairs: int = 64,
        weight: float | None = None,
        schedule: Literal["triangle", "constant"] = "triangle",
        ramp_epochs: int = 20,
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
        super().__init__()
        _check("schedule", schedule, ("triangle", "constant"))
        _check("loss", loss, LOSSES)
        _check("unit", unit, UNITS if loss == "l1" else ("cells",))
        _check("prior_on", prior_on, ("variance", "deviation"))
        _check("grids", grids, ("last", "stages", "blocks"))
        if pairs < 1:
            raise ValueError(f"pairs={pairs} was given; at least one pair of cells is needed")
        self.base = model if isinstance(model, Task) else Classify(model, label_smoothing=label_smoothing)
        recipe = _recipe(self.model)
        self.weight = recipe.weight if weight is None else weight
        self.schedule, self.ramp_epochs = schedule, ramp_epochs
        self.pairs, self.loss, self.unit = pairs, loss, unit
        self.signed = loss != "l1" if signed is None else signed
        self.prior, self.prior_on = prior, prior_on
        self.pool = recipe.pool if pool == "auto" else pool
        self.features = features if callable(features) else None
        if self.features is not None and not isinstance(self.base, Classify):
            raise ValueError("features= as a function takes the place of calling the model; within a task give a path")
        self.reader = GridReader(
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
            for source in self.reader.sources
        )
        # A tensor, so that a new weight needs no new compilation.
        self.register_buffer("strength", torch.tensor(float(self.weight)), persistent=False)
        like = next(self.model.parameters(), None)
        if like is not None:
            self.locators.to(device=like.device, dtype=like.dtype)
            self.strength = self.strength.to(like.device)
        if self.features is None:
            self.reader.listen()

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The host."""
        return self.base.model

    def forward(
        self,
        images: Tensor,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        pairs: Tensor | None = None,
        localize: bool | None = None,
        **step: Any,
    ) -> dict[str, Tensor]:
        """Run the model once; in training, add the localization loss.

        Args:
            images: B, C, H, W.
            targets: of the underlying task; None trains localization alone.
            generator: what pairs are drawn from, on the images' device; its default generator if None.
            pairs: indices of first and second cells, grids, B, M, 2, taken modulo the number of cells; see `draw`.
            localize: whether to localize, if not just in training.
            step: for the underlying task.

        Returns:
            What the underlying task does, with "loss" grown by the weighted "localization".
        """
        if not (self.training if localize is None else localize):
            return self.base(images, targets, generator=generator, **step)
        if self.features is not None:
            assert isinstance(self.base, Classify)
            answer, features = self.features(self.model, images)
            result = self.base.score(answer, targets)
            heard: list[Tensor | None] = [features]
        else:
            self.reader.open()
            try:
                result = self.base(images, targets, generator=generator, **step)
            finally:
                heard = self.reader.close()
        size = (images.shape[-2], images.shape[-1])
        found = [self.reader.read(index, features, size) for index, features in enumerate(heard)]
        if pairs is None:
            pairs = self._draw(images.shape[0], device=found[0].tokens.device, generator=generator)
        elif pairs.ndim != 4 or len(pairs) != len(found):
            shape = f"{len(found)}, {images.shape[0]}, number, 2"
            raise ValueError(f"pairs of shape {tuple(pairs.shape)} were given; they are one set a grid: {shape}")
        losses = [self._locate(*each) for each in zip(self.locators, found, pairs, strict=True)]
        localization = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        loss = self.strength * localization
        if "loss" in result:
            loss = result["loss"] + loss
        return {**result, "loss": loss, "localization": localization.detach()}

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw the pairs of one step, on the device; for a compiled task, which takes no generator."""
        drawn = self.base.draw(batch_size, device=device, generator=generator)
        return {**drawn, "pairs": self._draw(batch_size, device=device, generator=generator)}

    def set_epoch(self, epoch: float, total_epochs: int) -> None:
        """Set the weight for an epoch, counted from 0; fractions are allowed."""
        self.base.set_epoch(epoch, total_epochs)
        self.strength.fill_(self.weight_at(epoch, total_epochs))

    def weight_at(self, epoch: float, total_epochs: int) -> float:
        """Return the weight of the localization loss in an epoch."""
        if self.schedule == "constant":
            return self.weight
        if epoch < self.ramp_epochs:
            return self.weight * epoch / self.ramp_epochs
        return self.weight * max(0.0, 1 - (epoch - self.ramp_epochs) / max(total_epochs - self.ramp_epochs, 1))

    def release(self) -> None:
        """Take the task's listeners off the host; it cannot localize any more."""
        self.reader.release()

    def _draw(self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None) -> Tensor:
        count = len(self.locators)
        drawn = draw_pairs(count * batch_size, self.pairs, device=device, generator=generator)
        return drawn.unflatten(0, (count, batch_size))

    def _locate(self, locator: nn.Module, found: "Found", pairs: Tensor) -> Tensor:
        """Return the localization loss on one grid."""
        tokens, grid, skip = found.tokens, found.grid, found.skip
        if self.pool is not None and shrinks(grid, self.pool):
            x = pool_map(tokens[:, skip:].transpose(1, 2).unflatten(2, grid), self.pool)
            tokens, grid, skip = x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3]), 0
        if grid[0] * grid[1] < 2:
            raise HostError(
                f"{self.reader.host.name} leaves a grid of one cell, in which there is nothing to localize; give "
                "larger images, or choose a finer grid by grids='stages' or features="
            )
        pairs = pairs % (grid[0] * grid[1])
        predicted = locator(tokens, pairs + skip if skip else pairs)
        if self.loss != "l1" and any(self._offsets(n) > p.shape[-1] for n, p in zip(grid, predicted, strict=True)):
            raise ValueError(
                f"a grid has {grid[0]}x{grid[1]} cells, more than the classes were made for; pass cells=({grid[0]}, "
                f"{grid[1]}), the largest there will be, or pool= to make it smaller"
            )
        target = offsets(pairs, grid, signed=self.signed, unit=self.unit, dtype=upcast(tokens).dtype)
        return locate_loss(predicted, target, loss=self.loss, prior=self.prior, prior_on=self.prior_on)

    def _classes(self, source: "Source", cells: int | Grid | None) -> tuple[int, int]:
        """Return how many offsets there are along rows and columns."""
        if cells is None:
            grid, size, stride = self.reader.host.grid, _image_size(self.model), source.stride
            if grid is None and size is not None and stride is not None:
                grid = (-(-size[0] // stride), -(-size[1] // stride))
            if grid is None:
                raise HostError(f"{self.reader.host.name} does not tell its grid; for loss={self.loss!r} pass cells=")
            cells = pooled_grid(grid, self.pool)
            if self.pool is not None:  # images of other sizes, up to twice as wide as high, leave no larger grid
                most = 2 * self.pool
                cells = (max(cells[0], min(grid[0], most)), max(cells[1], min(grid[1], most)))
        rows, columns = (cells, cells) if isinstance(cells, int) else cells
        return self._offsets(rows), self._offsets(columns)

    def _offsets(self, cells: int) -> int:
        return 2 * cells - 1 if self.signed else cells


@dataclass(frozen=True)
class Recipe:
    """What the published code does with a family of hosts."""

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
    return next((RECIPES[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in RECIPES), OTHERS)


@dataclass(frozen=True)
class Source:
    """Where a grid passes.

    Attributes:
        path: the module it passes.
        before: it is the module's input, else its output.
        dim: its width.
        stride: pixels from cell to cell, if known.
    """

    path: str
    before: bool
    dim: int
    stride: int | None


@dataclass(frozen=True)
class Found:
    """What passed: tokens, B, skip + rows * columns, C, of which the first `skip` are not of the grid."""

    tokens: Tensor
    grid: Grid
    skip: int = 0


class GridReader:
    """Hears a host's grids pass while it runs, through hooks that do nothing outside `open` and `close`."""

    def __init__(
        self,
        host: Host,
        grids: Grids,
        *,
        norm: bool,
        path: str | None,
        dim: int | None,
        prefix_tokens: int | None,
        layout: Layout | None,
    ) -> None:
        if host.text:
            raise HostError(f"RelativeLocalization needs a grid of image features; {host.name} reads words, in a line")
        self.host, self.prefix_tokens, self.layout = host, prefix_tokens, layout
        self.info: list[dict[str, Any]] = _feature_info(host.model)
        *paths, last = self._paths(grids) if path is None else [path]
        before = False
        if path is None:
            last, before = self._last_place(last, after_norm=norm, block=grids == "blocks")
        self.sources = [self._describe(p, dim) for p in paths] + [self._describe(last, dim, before=before, last=True)]
        self.heard: list[Tensor | None] | None = None
        self.hooks: list[RemovableHandle] = []

    def listen(self) -> None:
        """Put a hook on every source."""
        for index, source in enumerate(self.sources):
            module = self.host.model.get_submodule(source.path)
            register = module.register_forward_pre_hook if source.before else module.register_forward_hook
            self.hooks.append(register(_Ear(self, index)))

    def release(self) -> None:
        """Take the hooks off."""
        while self.hooks:
            self.hooks.pop().remove()

    def open(self) -> None:
        """Begin to keep what passes."""
        self.heard = [None] * len(self.sources)

    def close(self) -> list[Tensor | None]:
        """Return what passed each source, and forget it."""
        heard, self.heard = self.heard or [], None
        return heard

    def read(self, index: int, features: Tensor | None, size: tuple[int, int]) -> "Found":
        """Tell what passed a source, for images of a size."""
        source = self.sources[index]
        if features is None:
            raise HostError(f"{self.host.name} did not run {source.path!r}; pass features= with a path that it runs")
        if features.ndim == 3:
            grid, skip = self._token_grid(features.shape[1], source.stride, size)
            found = Found(features, grid, skip)
        elif features.ndim != 4:
            raise HostError(f"{source.path!r} returns {features.ndim} axes, no grid; pass features= with another path")
        elif self._channels_last(features, source.dim):
            found = Found(features.flatten(1, 2), (features.shape[1], features.shape[2]))
        else:
            found = Found(features.flatten(2).transpose(1, 2), (features.shape[2], features.shape[3]))
        if found.tokens.shape[2] != source.dim:
            raise HostError(
                f"{source.path!r} returns shape {tuple(features.shape)}, of which {source.dim} channels were expected; "
                "pass dim=, or layout= if they stand elsewhere"
            )
        return found

    def _channels_last(self, features: Tensor, dim: int) -> bool:
        if self.layout is None and (features.shape[1] == dim) != (features.shape[3] == dim):
            return features.shape[3] == dim
        return self.host.layout == "NHWC"

    def _token_grid(self, count: int, stride: int | None, size: tuple[int, int]) -> tuple[Grid, int]:
        """Return the grid of a sequence, and how many tokens stand before it."""
        host, told = self.host, self.prefix_tokens
        # A class token may come in late, hence fewer tokens in some places than in others.
        prefixes = [host.prefix_tokens, host.output_prefix, 0] if told is None else [told]
        grids: list[Grid] = [host.grid] if host.grid else []
        if stride and not grids:
            rows, columns = ((side // stride, -(-side // stride)) for side in size)  # hosts round down or up
            grids = list(product(rows, columns))
        for prefix, grid in product(prefixes, grids):
            if prefix + grid[0] * grid[1] == count:
                return grid, prefix
        if host.grid:
            raise HostError(f"grid={host.grid} was given, but there are {count} tokens; pass prefix_tokens= too")
        return guess_grid(count - prefixes[0], size), prefixes[0]

    def _paths(self, grids: Grids) -> list[str]:
        """Return the modules that return a host's grids, the last one last."""
        host = self.host
        if grids == "blocks":
            require_blocks(host, "RelativeLocalization(grids='blocks')")
            return [block.path for block in host.blocks]
        if self.info:
            paths = [entry["module"] for entry in self.info]
            if grids == "stages" and _recipe(host.model) is SWIN:
                # timm's stages begin with the merging that the published ones end with
                return [f"{path}.downsample" for path in paths[1:]] + paths[-1:]
            return paths if grids == "stages" else paths[-1:]
        if host.blocks and grids == "last":
            return [host.blocks[-1].path]
        raise HostError(
            f"RelativeLocalization found no {'stages' if grids == 'stages' else 'grid of features'} in {host.name}. "
            "Looked for timm's feature_info and for transformer blocks; pass features='path.of.module' with the module "
            "that returns the grid (and dim=, its width), or blocks=['path.of.block', ...]"
        )

    def _last_place(self, path: str, *, after_norm: bool, block: bool) -> tuple[str, bool]:
        """Return the module at which to hear the last grid, and whether it is its input."""
        norm = _norm_path(self.host.model)
        if after_norm and norm is None:
            raise HostError(
                f"{self.host.name} has no final norm under the names {', '.join(NORM_NAMES)}; pass norm=False, or "
                "features= with the norm's path"
            )
        if norm is not None and after_norm:
            return norm, False
        if norm is not None and not block and any(path == found.path for found in self.host.blocks):
            return norm, True  # it gets what the last block returns, and gets it outside any recomputation of blocks
        return path, False

    def _describe(self, path: str, dim: int | None, *, before: bool = False, last: bool = False) -> Source:
        model: Any = self.host.model
        try:
            model.get_submodule(path)
        except AttributeError:
            raise HostError(f"{self.host.name} has no module {path!r}; pass features= with the path of one") from None
        stages = [entry for entry in self.info if f"{path}.".startswith(f"{entry['module']}.")]
        stage = (stages or (self.info if last else []) or [{}])[-1]
        widths = [dim, stage.get("num_chs"), getattr(model, "num_features", None)]
        widths += [block.front.dim for block in self.host.blocks if block.path == path or last][-1:]
        width = next((width for width in widths if isinstance(width, int)), None)
        if width is None:
            raise HostError(f"{self.host.name} does not tell how wide the features of {path!r} are; pass dim=")
        stride = stage.get("reduction", getattr(getattr(model, "config", None), "patch_size", None))
        return Source(path, before, width, stride if isinstance(stride, int) else None)


class _Ear:
    """Hook, before or after a module, that gives what passes, or its first part, to an open reader."""

    def __init__(self, reader: GridReader, index: int) -> None:
        self.reader = reader
        self.index = index

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        if self.reader.heard is not None:
            passing = args if output is None else output
            self.reader.heard[self.index] = passing if isinstance(passing, Tensor) else passing[0]


def _feature_info(model: nn.Module) -> list[dict[str, Any]]:
    """Return timm's list of stages: module, num_chs, reduction."""
    info: Any = getattr(model, "feature_info", None) or []
    return [entry for entry in getattr(info, "info", info) if entry.get("module")]


def _norm_path(model: nn.Module) -> str | None:
    """Return the path of the norm after the last block."""
    inner = getattr(model, "base_model_prefix", "")  # of Hugging Face
    for parent in ("", *([inner] if hasattr(model, inner) else [])):
        for name in NORM_NAMES:
            norm = getattr(model.get_submodule(parent), name, None)
            if isinstance(norm, nn.Module) and not isinstance(norm, nn.ModuleList):
                return f"{parent}.{name}" if parent else name
    return None


def _image_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the height and width of the images a host was built for."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    for size in (
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        getattr(getattr(model, "config", None), "image_size", None),
        cfg.get("input_size"),
    ):
        if size is not None:
            return (size, size) if isinstance(size, int) else (size[-2], size[-1])
    return None


def _check(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} was given; allowed are {', '.join(allowed)}")
