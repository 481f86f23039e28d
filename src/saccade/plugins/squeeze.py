"""The squeeze-and-excitation block at the place of Context Broadcasting, which the paper compares it with."""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.broadcast import WithMean
from .context import OnTokens
from .registry import register_plugin
from .tokens import HookPoint


@register_plugin("squeeze")
class SqueezeExcite(OnTokens):
    """Every channel scaled by a gate that the mean token decides.

    Args:
        reduction: how much narrower the gate's hidden layer is; the paper gives no number, 16 is that of SE itself.
        options: where, and which tokens take part, as in ContextBroadcast.
    """

    name: ClassVar[str] = "squeeze"
    option_sources = (OnTokens,)

    def __init__(self, *, reduction: int = 16, **options: Any) -> None:
        super().__init__(**options)
        if reduction < 1:
            raise ValueError(f"reduction={reduction} was given; it must be 1 or more")
        self.reduction = reduction

    def build(self, place: HookPoint, *, skip: int, causal: bool) -> nn.Module:
        """Make the gate for one place."""
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
