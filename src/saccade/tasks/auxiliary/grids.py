"""Record a backbone's feature grids with hooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...layers.relative_location import Grid
from ...plugins.tokens import Host, HostError, Layout, guess_grid, require_blocks

Grids = Literal["last", "stages", "blocks"]
NORM_NAMES = ("norm", "layernorm", "final_norm")
MERGES_FIRST = ("SwinTransformer", "SwinTransformerV2")  # timm's stages begin with the merging that ends published ones


@dataclass(frozen=True)
class GridSource:
    """Location of a grid in the model."""

    path: str  # path of the module
    before: bool  # whether it is the module's input, instead of its output
    dim: int  # channels
    stride: int | None  # stride in pixels, if known


@dataclass(frozen=True)
class RecordedGrid:
    """Recorded tokens, B, skip + rows * columns, C, of which the first `skip` are prefix tokens."""

    tokens: Tensor
    grid: Grid
    skip: int = 0


def move_like(module: nn.Module, model: nn.Module) -> None:
    """Move a module to a model's device and dtype."""
    like = next(model.parameters(), None)
    if like is not None:
        module.to(device=like.device, dtype=like.dtype)


class GridRecorder:
    """Records a backbone's grids, through hooks that do nothing outside of `record`."""

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
            raise HostError(f"RelativeLocalization needs a grid of image features, but {host.name} reads text")
        self.host, self.prefix_tokens, self.layout = host, prefix_tokens, layout
        self.info: list[dict[str, Any]] = _feature_info(host.model)
        *paths, last = self._paths(grids) if path is None else [path]
        before = False
        if path is None:
            last, before = self._last_place(last, after_norm=norm, block=grids == "blocks")
        self.sources = [self._describe(p, dim) for p in paths] + [self._describe(last, dim, before=before, last=True)]
        self.recorded: list[Tensor | None] | None = None
        self.hooks: list[RemovableHandle] = []

    def add_hooks(self) -> None:
        """Add a hook to every source."""
        for index, source in enumerate(self.sources):
            module = self.host.model.get_submodule(source.path)
            register = module.register_forward_pre_hook if source.before else module.register_forward_hook
            self.hooks.append(register(partial(self._keep, index)))

    def _keep(self, index: int, _module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        """Hook before or after a module: store its tensor, or the first of several, while recording."""
        if self.recorded is not None:
            passing = args if output is None else output
            self.recorded[index] = passing if isinstance(passing, Tensor) else passing[0]

    def release(self) -> None:
        """Remove the hooks."""
        while self.hooks:
            self.hooks.pop().remove()

    @contextmanager
    def record(self) -> Iterator[list[Tensor | None]]:
        """Record the tensor of each source within a context."""
        recorded: list[Tensor | None] = [None] * len(self.sources)
        self.recorded = recorded
        try:
            yield recorded
        finally:
            self.recorded = None

    def read(self, index: int, features: Tensor | None, size: tuple[int, int]) -> "RecordedGrid":
        """Interpret a source's tensor as a grid, for images of the given size."""
        source = self.sources[index]
        if features is None:
            raise HostError(
                f"{self.host.name} did not run the module {source.path!r}; pass features= with the path of a module "
                "that it runs"
            )
        if features.ndim == 3:
            grid, skip = self._token_grid(features.shape[1], source.stride, size)
            found = RecordedGrid(features, grid, skip)
        elif features.ndim != 4:
            raise HostError(
                f"{source.path!r} returns a tensor with {features.ndim} dimensions, which is not a grid; pass "
                "features= with another path"
            )
        elif self._channels_last(features, source.dim):
            found = RecordedGrid(features.flatten(1, 2), (features.shape[1], features.shape[2]))
        else:
            found = RecordedGrid(features.flatten(2).transpose(1, 2), (features.shape[2], features.shape[3]))
        if found.tokens.shape[2] != source.dim:
            raise HostError(
                f"{source.path!r} returns shape {tuple(features.shape)}, but {source.dim} channels were expected; "
                "pass dim=, or layout= if the channels are in another dimension"
            )
        return found

    def _channels_last(self, features: Tensor, dim: int) -> bool:
        if self.layout is None and (features.shape[1] == dim) != (features.shape[3] == dim):
            return features.shape[3] == dim
        return self.host.layout == "NHWC"

    def _token_grid(self, count: int, stride: int | None, size: tuple[int, int]) -> tuple[Grid, int]:
        """Return the grid of a sequence, and its number of prefix tokens."""
        host, given = self.host, self.prefix_tokens
        # The class token may be added late, so the number of prefix tokens can vary.
        prefixes = [host.prefix_tokens, host.output_prefix, 0] if given is None else [given]
        grids: list[Grid] = [host.grid] if host.grid else []
        if stride and not grids:
            rows, columns = ((side // stride, -(-side // stride)) for side in size)  # models round down or up
            grids = list(product(rows, columns))
        for prefix, grid in product(prefixes, grids):
            if prefix + grid[0] * grid[1] == count:
                return grid, prefix
        if host.grid:
            raise HostError(f"grid={host.grid} was given, but there are {count} tokens; pass prefix_tokens= too")
        return guess_grid(count - prefixes[0], size), prefixes[0]

    def _paths(self, grids: Grids) -> list[str]:
        """Return the modules that output a model's grids, in order."""
        host = self.host
        if grids == "blocks":
            require_blocks(host, "RelativeLocalization(grids='blocks')")
            return [block.path for block in host.blocks]
        if self.info:
            paths = [entry["module"] for entry in self.info]
            if grids == "stages" and any(kind.__name__ in MERGES_FIRST for kind in type(host.model).__mro__):
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
        """Return the module to record the last grid at, and whether to take its input."""
        norm = norm_path(self.host.model)
        if after_norm and norm is None:
            raise HostError(
                f"{self.host.name} has no final norm named {', '.join(NORM_NAMES)}; pass norm=False, or features= "
                "with the norm's path"
            )
        if norm is not None and after_norm:
            return norm, False
        if norm is not None and not block and any(path == found.path for found in self.host.blocks):
            return norm, True  # its input is the last block's output, outside of gradient checkpointing
        return path, False

    def _describe(self, path: str, dim: int | None, *, before: bool = False, last: bool = False) -> GridSource:
        model: Any = self.host.model
        try:
            model.get_submodule(path)
        except AttributeError:
            raise HostError(
                f"{self.host.name} has no module {path!r}; pass features= with the path of an existing module"
            ) from None
        stages = [entry for entry in self.info if f"{path}.".startswith(f"{entry['module']}.")]
        stage = (stages or (self.info if last else []) or [{}])[-1]
        widths = [dim, stage.get("num_chs"), getattr(model, "num_features", None)]
        widths += [block.front.dim for block in self.host.blocks if block.path == path or last][-1:]
        width = next((width for width in widths if isinstance(width, int)), None)
        if width is None:
            raise HostError(f"{self.host.name} does not report the number of channels of {path!r}; pass dim=")
        stride = stage.get("reduction", getattr(getattr(model, "config", None), "patch_size", None))
        return GridSource(path, before, width, stride if isinstance(stride, int) else None)


def _feature_info(model: nn.Module) -> list[dict[str, Any]]:
    """Return timm's list of stages: module, num_chs, reduction."""
    info: Any = getattr(model, "feature_info", None) or []
    return [entry for entry in getattr(info, "info", info) if entry.get("module")]


def norm_path(model: nn.Module) -> str | None:
    """Return the path of the norm after the last block."""
    inner = getattr(model, "base_model_prefix", "")  # Hugging Face models
    for parent in ("", *([inner] if hasattr(model, inner) else [])):
        for name in NORM_NAMES:
            norm = getattr(model.get_submodule(parent), name, None)
            if isinstance(norm, nn.Module) and not isinstance(norm, nn.ModuleList):
                return f"{parent}.{name}" if parent else name
    return None


def image_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the height and width of a model's images."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    for size in (
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        getattr(getattr(model, "config", None), "image_size", None),
        cfg.get("input_size"),
    ):
        if size is not None:
            return (size, size) if isinstance(size, int) else (size[-2], size[-1])
    return None
