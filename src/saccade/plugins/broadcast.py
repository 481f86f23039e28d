"""Context Broadcasting for any token model: the mean token supplied to every token after the MLP."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import nn

from ..layers.broadcast import Broadcast
from .context import OnTokens, Position
from .masks import Part
from .registry import register_plugin
from .tokens import HookPoint


@register_plugin("broadcast")
class ContextBroadcast(OnTokens):
    """CB of "Scratching Visual Transformer's Back with Uniform Attention", or with `scale` its CB_S.

    Padding never counts. A token that takes no part (padding, a prefix token with class_token=False, the other half of
    a model of text and images) neither counts in the mean nor receives it.

    Args:
        position: "mlp" (the paper's place), "mlp_mid", "mlp_front", "attention" or "both".
        layers: "upper" half of the blocks (the paper's better choice), "all" (its CB†), or indices of blocks.
        scale: True learns how much of the mean each channel gets, from zero on (CB_S), instead of half of everything;
            "fixed" adds the whole mean (CB_S with Λ = 1).
        class_token: prefix tokens take part, as in the paper.
        tokens: of a model that reads text and images, the tokens that take part: "all", "image" or "text".
        causal: the mean runs over a token and those before it; None does as the host's attention does.
        spare_pyramid: never on a block whose features feed a pyramid, as the paper does for detection.
    """

    name: ClassVar[str] = "broadcast"

    def __init__(
        self,
        *,
        position: Position = "mlp",
        layers: Literal["upper", "all"] | Sequence[int] = "upper",
        scale: bool | Literal["fixed"] = False,
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
        Broadcast(1, scale=scale)  # a wrong one is refused here
        self.scale = scale

    def build(self, place: HookPoint, *, skip: int, causal: bool) -> nn.Module:
        """Make the broadcast for one place."""
        layout = "NCHW" if place.channels_first else "NLC"
        return Broadcast(place.dim, scale=self.scale, layout=layout, skip=skip, causal=causal)
