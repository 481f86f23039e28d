"""Columnar backbones: embedding, class token, fixed sinusoidal positions, transformer blocks."""

from typing import Any, ClassVar, Protocol, cast

import torch
from timm.layers import to_2tuple
from timm.models._features import feature_take_indices
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.fx import wrap

from ..layers.position import resize_tokens, sinusoid_table
from ..settings.values import require_choice
from ._backbone import Backbone, run_blocks

__all__ = ["Block", "Columnar"]

wrap("resize_tokens")  # a leaf of traced graphs here too: what calls it is a method, not a module


class Embedding(Protocol):
    """Interface of token embeddings."""

    stride: int

    def __call__(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, C, H, W."""

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid for an image size."""


class Columnar(Backbone):
    """A plain transformer with a class token.

    Positions are the frozen sinusoidal table over the flat token index of SoT and T2T-ViT. It is built for `img_size`,
    and resampled on the two-dimensional grid for other sizes.
    """

    default_out_indices: ClassVar[int | tuple[int, ...]] = 3  # the last blocks, as in timm's columnar models
    levels: ClassVar[str] = "blocks"
    num_prefix_tokens: int = 1
    pos_embed: Tensor

    def __init__(
        self,
        *,
        patch_embed: nn.Module,
        blocks: list[nn.Module],
        img_size: int | tuple[int, int],
        embed_dim: int,
        norm: nn.Module,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.patch_embed = patch_embed
        self.grid_size = cast(Embedding, patch_embed).grid(*to_2tuple(img_size))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        # A persistent buffer: not trained, but saved, since a resampled table differs from the formula.
        self.register_buffer("pos_embed", sinusoid_table(1 + self.grid_size[0] * self.grid_size[1], embed_dim))
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": cast(Embedding, patch_embed).stride, "module": f"blocks.{i}"}
            for i in range(len(blocks))
        ]

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """Width of the output of `forward_features`."""
        return self.embed_dim

    def embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens with class token and positions, B, 1 + N, C, and their grid."""
        x = self.patch_embed(x)
        grid = (x.shape[2], x.shape[3])
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        positions = resize_tokens(self.pos_embed, grid, old=self.grid_size)
        return self.pos_drop(x + positions), grid

    def forward_features(self, x: Tensor) -> Tensor:
        """Return normalised tokens, B, 1 + N, C."""
        x, _ = self.embed(x)
        return self.norm(run_blocks(self.blocks, x, recompute=self.grad_checkpointing))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Any] | tuple[Tensor, list[Any]]:
        """Return the patch tokens after the chosen blocks, and optionally the final tokens.

        Args:
            x: images, B, in_chans, H, W.
            indices: blocks to take; an int takes the last ones, None all of them.
            return_prefix_tokens: return pairs of patch tokens and class token (B, 1, C).
            norm: apply the final norm to every taken output.
            stop_early: do not compute what no output needs.
            output_fmt: "NCHW" for maps, "NLC" for sequences.
            intermediates_only: do not return the final tokens.
        """
        require_choice("output_fmt", output_fmt, ("NCHW", "NLC"))
        take, last = feature_take_indices(len(self.blocks), indices)
        x, grid = self.embed(x)
        outputs: list[Any] = []
        for index, block in enumerate(self.blocks):
            x = run_blocks([block], x, recompute=self.grad_checkpointing)
            if index in take:
                tokens = self.norm(x) if norm else x
                words = tokens[:, 1:]
                if output_fmt == "NCHW":
                    words = words.transpose(1, 2).unflatten(2, grid)
                outputs.append((words, tokens[:, :1]) if return_prefix_tokens else words)
            if stop_early and index == last:
                break
        if intermediates_only:
            return outputs
        return self.norm(x), outputs

    def set_input_size(self, img_size: int | tuple[int, int] | None = None, **_: Any) -> None:
        """Resample the position table for another image size once, instead of in every forward."""
        if img_size is None:
            return
        grid = cast(Embedding, self.patch_embed).grid(*to_2tuple(img_size))
        self.pos_embed = resize_tokens(self.pos_embed, grid, old=self.grid_size)
        self.grid_size = grid

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters that weight decay would harm."""
        return {"cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Return timm's map from parameter names to layers, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^pos_embed|^patch_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }
