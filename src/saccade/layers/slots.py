"""The global branch of GLMix: a few semantic slots, clustered from the map, that attend to each other."""

import math
from typing import Literal

import torch
from timm.layers import Attention
from timm.models import register_notrace_module
from torch import Tensor, nn

from ..settings.values import require_choice
from .cluster import Dispatch, correspondence, kmeans, kmeans_cluster, pool_slots, soft_cluster
from .init import init_linear
from .tap import Tap

Slots = Literal["pool", "learned"]
SlotScale = Literal["learned", "constant"]
Clustering = Literal["soft", "kmeans"]


@register_notrace_module  # pooling looks at sizes
class SlotMixer(nn.Module):
    """Cluster a map into slots, attend among the slots, dispatch them back to the map (GLMix eq. 1-4).

    A visualisation hooks the Taps `slots` (initial slots, B, M, C) and `features` (the map that is clustered, B, H, W,
    C) and gets the assignment maps from `assignment`.

    Args:
        dim: channels.
        num_heads: heads of the attention among the slots.
        num_slots: how many slots; a square number if they are pooled.
        slots: where initial slots come from: "pool" averages them from the map (eq. 1), "learned" shares parameters
            between images (static row of table 6).
        slot_scale: factor of the cosine, 1 / tau of eq. 2: "learned" (the paper) from dim ** -0.5 (published code) on,
            or "constant" at that value.
        clustering: "soft" (the paper's), or "kmeans": hard, iterative, without a scale. It stands for the k-means row
            of table 6 but differs: the paper ran Clustered Attention, whose slots start from hashing, and its loss
            became NaN; here the pooled slots are the first centres.
        kmeans_iterations: updates of the centres in "kmeans".
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        num_slots: int = 64,
        slots: Slots = "pool",
        slot_scale: SlotScale = "learned",
        clustering: Clustering = "soft",
        kmeans_iterations: int = 10,
    ) -> None:
        super().__init__()
        require_choice("slots", slots, Slots)
        require_choice("slot_scale", slot_scale, SlotScale)
        require_choice("clustering", clustering, Clustering)
        self.clustering = clustering
        self.kmeans_iterations = kmeans_iterations
        self.count, self.side = num_slots, math.isqrt(num_slots)
        self.init_slots: nn.Parameter | None = None
        if slots == "learned":
            if clustering == "kmeans":
                raise ValueError("slots='learned' gets no gradient through clustering='kmeans'; use slots='pool'")
            self.init_slots = nn.Parameter(torch.empty(1, num_slots, dim).normal_(std=0.02))
        elif num_slots < 1 or self.side**2 != num_slots:
            raise ValueError(
                f"num_slots={num_slots} was given; pooled slots form a square grid (9, 16, 25, 36, 49, 64, ...), "
                "slots='learned' takes any number"
            )
        scale = torch.tensor(dim**-0.5) if clustering == "soft" else None
        self.scale: Tensor | None
        if scale is not None and slot_scale == "learned":
            self.scale = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)
        self.attn = self_attention(dim, num_heads)
        self.slots = Tap()
        self.features = Tap()

    def forward(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix a map through slots.

        Args:
            x: map to cluster and to dispatch to, B, H * W, C.
            source: map that pooled slots are averaged from, B, H * W, C: the paper's X for both, but the published code
                averages the block's input, before norm and position encoding.
            grid: H, W.

        Returns:
            Map, B, H * W, C.
        """
        slots = self.slots(self.initial_slots(source, grid))  # S_init
        self.features(x.unflatten(1, grid))  # for visualisations only: nothing else reads the map in this shape
        slots, dispatch = self.cluster(slots, x)  # S
        return dispatch(self.attn(slots))  # S' and G

    def initial_slots(self, source: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the slots before clustering, B, M, C: averages of the map (GLMix eq. 1) or shared parameters."""
        if self.init_slots is not None:
            return self.init_slots.repeat(source.shape[0], 1, 1)  # a view of a parameter would break module hooks
        return pool_slots(source, grid, self.side)

    def cluster(self, slots: Tensor, features: Tensor) -> tuple[Tensor, Dispatch]:
        """Return clustered slots, B, M, C, and the dispatch to the positions of features, B, N, C (GLMix eq. 2-4)."""
        if self.clustering == "kmeans":
            return kmeans_cluster(slots, features, self.kmeans_iterations)
        assert self.scale is not None
        return soft_cluster(slots, features, self.scale)

    def assignment(self, slots: Tensor, features: Tensor) -> Tensor:
        """Return how much each position counts in each slot, the weights of GLMix eq. 3.

        Args:
            slots: what passed the Tap `slots`, B, M, C.
            features: what passed the Tap `features`, B, H, W, C.

        Returns:
            Weights that sum to one over positions, B, M, H * W.
        """
        features = features.flatten(1, 2)
        if self.clustering == "kmeans":
            return kmeans(slots, features, self.kmeans_iterations)[0]
        assert self.scale is not None
        return correspondence(slots, features, self.scale).softmax(dim=2)


def self_attention(dim: int, num_heads: int) -> Attention:
    """Build multi-head attention over tokens; qkv is drawn as nn.MultiheadAttention draws its packed projection."""
    attention = Attention(dim, num_heads=num_heads, qkv_bias=True)
    nn.init.xavier_uniform_(attention.qkv.weight)
    nn.init.zeros_(attention.qkv.bias)
    init_linear(attention.proj)
    return attention
