"""The squeeze-and-excitation block at the place of Context Broadcasting, which the paper compares it with."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.broadcast import WithMean
from .context import OnTokens, Part, Position
from .registry import register_plugin
from .tokens import HookPoint


@register_plugin("squeeze")
class SqueezeExcite(OnTokens):
    """Every channel scaled by a gate that the mean token decides.

    Args:
        reduction: how much narrower the gate's hidden layer is; the paper gives no number, 16 is that of SE itself.
        position: as in ContextBroadcast, like all that follow.
        layers: "upper" half of the blocks, "all", or indices of blocks.
        class_token: prefix tokens take part.
        tokens: of a model that reads text and pictures, the tokens that take part: "all", "image" or "text".
        causal: a token's gate comes from it and those before it; None does as the host's attention does.
        spare_pyramid: never on a block whose features feed a pyramid.
    """

    name: ClassVar[str] = "squeeze"

    def __init__(
        self,
        *,
        reduction: int = 16,
        position: Position = "mlp",
        layers: Literal["upper", "all"] | Sequence[int] = "upper",
        class_token: bool = True,
        tokens: Part = "all",
        causal: bool | None = None,
        spare_pyramid: bool = False,
    ) -> None:
        super().__init__(
            position=position,
            layers=layers,
            class_token=class_token,
            tokens=tokens,
            causal=causal,
            spare_pyramid=spare_pyramid,
        )
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
