"""Context Broadcasting (CB): add the mean token to every token after the MLP."""

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

    Tokens that do not take part (padding, prefix tokens with class_token=False, the other modality of a multimodal
    model) neither count in the mean nor receive it.

    Args:
        position: "mlp" (the paper's place), "mlp_mid", "mlp_front", "attention" or "both".
        layers: "upper" half of the blocks (the paper's better choice), "all" (its CB†), or indices of blocks.
        scale: True: learn a channelwise scale of the mean, initialised to zero (CB_S); False: average token and mean;
            "fixed": add the mean (CB_S with Λ = 1).
        class_token: whether prefix tokens take part, as in the paper.
        tokens: in multimodal models, the tokens that take part: "all", "image" or "text".
        causal: mean over a token and those before it; None: like the model's attention.
        spare_pyramid: skip blocks whose features feed a pyramid, as in the paper for detection.
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
        Broadcast(1, scale=scale)  # raises for an invalid scale
        self.scale = scale

    def build(self, place: HookPoint, *, skip: int, causal: bool) -> nn.Module:
        """Build the module for one hook point."""
        layout = "NCHW" if place.channels_first else "NLC"
        return Broadcast(place.dim, scale=self.scale, layout=layout, skip=skip, causal=causal)
