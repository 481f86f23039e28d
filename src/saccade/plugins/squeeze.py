"""Squeeze-and-excitation in place of Context Broadcasting, as compared in the paper."""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.broadcast import WithMean
from .context import OnTokens
from .registry import register_plugin
from .tokens import HookPoint


@register_plugin("squeeze")
class SqueezeExcite(OnTokens):
    """Scale every channel by a gate computed from the mean token.

    Args:
        reduction: reduction ratio of the hidden layer; 16 as in SE (the CB paper gives none).
        options: options of `ContextBroadcast`: positions and tokens.
    """

    name: ClassVar[str] = "squeeze"
    option_sources = (OnTokens,)

    def __init__(self, *, reduction: int = 16, **options: Any) -> None:
        super().__init__(**options)
        if reduction < 1:
            raise ValueError(f"reduction={reduction} was given; it must be 1 or more")
        self.reduction = reduction

    def build(self, place: HookPoint, *, skip: int, causal: bool) -> nn.Module:
        """Build the gate for one hook point."""
        layout = "NCHW" if place.channels_first else "NLC"
        hidden = max(1, place.dim // self.reduction)
        return Squeeze(place.dim, hidden, layout=layout, skip=skip, causal=causal)


class Squeeze(WithMean):
    """x * sigmoid(W2 relu(W1 mean)), with options as in `WithMean`."""

    def __init__(self, dim: int, hidden: int, *, layout: str = "NLC", skip: int = 0, causal: bool = False) -> None:
        super().__init__(layout=layout, skip=skip, causal=causal)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def combine(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return gated tokens."""
        gate = self.fc2(F.relu(self.fc1(mean.movedim(self.channel, -1)))).sigmoid()
        return x * gate.movedim(-1, self.channel)
