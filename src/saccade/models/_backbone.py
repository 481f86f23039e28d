"""Base classes of backbones with timm's interface."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar, cast

import torch
from timm.models import register_notrace_function
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from ._official import adapt

NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)

LayerT = TypeVar("LayerT", bound=nn.Module)


class Backbone(nn.Module):
    """Base of all backbones: timm's methods, and loading of published checkpoints.

    A family sets `num_classes`, `num_features`, `feature_info` and implements `forward_features`, `forward_head`,
    `forward_intermediates`, `group_matcher` and `convert`.
    """

    default_out_indices: ClassVar[int | tuple[int, ...]] = (0, 1, 2, 3)
    official_prefix: ClassVar[str]  # prefix of keys that only the published code has
    classifier: ClassVar[tuple[str, ...]] = ("head",)  # modules with one row per class
    pools: ClassVar[tuple[str, ...]] = ("avg",)  # values of `global_pool`, besides "" without a classifier
    levels: ClassVar[str]  # the modules that `feature_info` counts

    num_classes: int
    num_features: int
    norm: nn.Module
    feature_info: list[dict[str, Any]]
    head: nn.Module
    global_pool: str

    def __init__(self) -> None:
        super().__init__()
        self.grad_checkpointing = False

    @property
    def head_hidden_size(self) -> int:
        """Width of the output of `forward_head(pre_logits=True)`."""
        return self.num_features

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the final, normalised features before pooling."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool the output of `forward_features` and classify it."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch of images of any size.

        Args:
            x: images, B, in_chans, H, W.

        Returns:
            Logits, B, num_classes.
        """
        return self.forward_head(self.forward_features(x))

    def like_self(self, layer: LayerT) -> LayerT:
        """Move a new layer to the model's device and dtype."""
        like = next(self.parameters(), None)
        return layer if like is None else layer.to(like)

    def get_classifier(self) -> nn.Module:
        """Return the classifier."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier; zero classes makes it an identity."""
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in (*self.pools, ""):
            allowed = ", ".join(map(repr, self.pools))
            raise ValueError(f"global_pool={pool!r} was given; allowed are {allowed} and ''")
        if pool == "" and num_classes > 0:
            classifying = " or ".join(map(repr, self.pools))
            raise ValueError(f"global_pool='' was given with num_classes={num_classes}; use {classifying} to classify")
        self.global_pool, self.num_classes = pool, num_classes
        self.head = self.new_classifier() if num_classes > 0 else nn.Identity()

    def new_classifier(self) -> nn.Linear:
        """Return a linear layer for `num_classes` logits."""
        layer = self.like_self(nn.Linear(self.head_hidden_size, self.num_classes))
        self.init_classifier(layer)
        return layer

    @staticmethod
    def init_classifier(module: nn.Module) -> None:
        """Initialise a new classifier; by default as in PyTorch."""

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove layers, norm and head that the chosen outputs do not need; return the outputs' indices."""
        levels = getattr(self, self.levels)
        take, last = feature_take_indices(len(levels), indices)
        setattr(self, self.levels, levels[: last + 1])
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return take

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters without weight decay."""
        return set()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable gradient checkpointing."""
        module: Any
        for module in self.modules():
            if hasattr(module, "grad_checkpointing"):
                module.grad_checkpointing = enable

    def set_input_size(self, img_size: int | tuple[int, int] | None = None, **_: Any) -> None:
        """Resize position embeddings for another image size, if there are any."""

    def is_official(self, state_dict: Mapping[str, Any]) -> bool:
        """Whether a state dict is in the published code's layout and not in ours."""
        return any(key.startswith(self.official_prefix) for key in state_dict)

    def convert(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a published state dict, and resize position embeddings to this model's grid."""
        raise NotImplementedError

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:  # torch's private result type
        """Load a state dict of saccade's layout, or convert a published one."""
        if self.is_official(state_dict):
            state_dict, strict = adapt(self, state_dict, strict=strict).state_dict, False  # checked there
        return super().load_state_dict(state_dict, strict=strict, assign=assign)


class Pyramid(Backbone):
    """A hierarchical backbone, whose stages map B, C, H, W to half the side.

    `stem`, `stages` and `norm` are modules; a family whose last stage returns more than a map overrides `as_map`.
    """

    levels: ClassVar[str] = "stages"
    stem: nn.Module
    stages: nn.ModuleList

    def as_map(self, x: Any, norm: bool) -> Tensor:
        """Return a stage's output as B, C, H, W, normalised if asked, which only the last stage's is."""
        return self.norm(x) if norm else x

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the maps of the chosen stages, and the final features unless told not to.

        Args:
            x: images, B, in_chans, H, W.
            indices: stages to take; an int takes the last ones, None all of them.
            norm: apply the final norm to the last stage's map.
            stop_early: do not compute what no map needs.
            output_fmt: only "NCHW".
            intermediates_only: do not return the final features.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt={output_fmt!r} was given; feature maps of a pyramid are always 'NCHW'")
        take, last = feature_take_indices(len(self.stages), indices)
        maps = []
        x = self.stem(x)
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in take:
                maps.append(self.as_map(x, norm and index == len(self.feature_info) - 1))
            if stop_early and index == last:
                break
        if intermediates_only:
            return maps
        return self.finish(x), maps

    def finish(self, x: Any) -> Tensor:
        """Convert the last stage's output to that of `forward_features`."""
        return self.norm(x)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last stage's features after the final norm."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.finish(x)


def run_blocks(blocks: Iterable[nn.Module], x: Tensor, *args: Any, recompute: bool) -> Tensor:
    """Run blocks in order, keeping only their inputs for the backward pass if `recompute`."""
    recompute = recompute and torch.is_grad_enabled()  # checkpointing synchronises even without gradients
    for block in blocks:
        x = _recomputed(block, x, *args) if recompute else block(x, *args)
    return x


def _recomputed(block: nn.Module, x: Tensor, *args: Any) -> Tensor:
    """Run a block with checkpointing, updating its batch statistics once."""
    norms = {name: m for name, m in block.named_modules() if isinstance(m, NORMS) and m.training}
    statistics = {f"{name}.{key}": value for name, m in norms.items() for key, value in m.named_buffers()}
    if not statistics:
        return cast(Tensor, checkpoint(block, x, *args, use_reentrant=False))

    def run(*inputs: Any) -> tuple[Tensor, ...]:
        copies = {name: value.clone() for name, value in statistics.items()}  # each run updates its own
        return functional_call(block, copies, inputs), *copies.values()

    x, *updated = checkpoint(run, x, *args, use_reentrant=False)
    for value, new in zip(statistics.values(), updated, strict=True):
        value.copy_(new)
    return x


def to_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Reshape tokens B, H * W, C to a map B, C, H, W."""
    x = x.unflatten(1, grid).permute(0, 3, 1, 2)
    return x if isinstance(grid[0], int) else x.contiguous()  # symbolic strides cannot be compared in export


register_notrace_function(to_map)  # it depends on sizes
