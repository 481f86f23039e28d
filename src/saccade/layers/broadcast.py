"""Context Broadcasting: the mean token, added to every token (uniform attention without parameters)."""

from typing import Literal

import torch
from torch import Tensor, nn

from ..settings.values import require_choice
from .numerics import upcast

LAYOUTS = ("NLC", "NHWC", "NCHW")


class WithMean(nn.Module):
    """Base of modules that combine every token with the mean token.

    A token outside the mask, or among the first `skip` of a sequence, neither counts in the mean nor changes.

    Args:
        layout: "NLC" or "NHWC" (channels last, tokens of any number of axes) or "NCHW".
        skip: how many tokens at the front of a sequence take no part.
        causal: the mean of a token runs over itself and those before it, as in a language model.
    """

    def __init__(self, *, layout: str = "NLC", skip: int = 0, causal: bool = False) -> None:
        super().__init__()
        require_choice("layout", layout, LAYOUTS)
        self.layout, self.skip, self.causal = layout, skip, causal
        self.channel = 1 if layout == "NCHW" else -1

    def combine(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return new tokens; the mean has axes of one for the tokens' or, if causal, the shape of `x`."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Combine tokens with their mean.

        Args:
            x: tokens in the module's layout.
            mask: true where a token takes part; the shape of `x` without its channels. None takes all.

        Returns:
            A tensor like `x`.
        """
        if not self.skip:
            return self._apply_to(x, mask)
        prefix, tokens = x[:, : self.skip], x[:, self.skip :]
        return torch.cat([prefix, self._apply_to(tokens, None if mask is None else mask[:, self.skip :])], dim=1)

    def _apply_to(self, x: Tensor, mask: Tensor | None) -> Tensor:
        mask = None if mask is None else mask.unsqueeze(self.channel)
        mean = running_mean(x, mask) if self.causal else token_mean(x, mask, channel=self.channel)
        out = self.combine(x, mean)
        return out if mask is None else torch.where(mask, out, x)

    def extra_repr(self) -> str:
        """Show how tokens are laid out."""
        return f"layout={self.layout}, skip={self.skip}, causal={self.causal}"


class Broadcast(WithMean):
    """CB, eq. 1 of the paper: half the token and half the mean; or with `scale` its form CB_S.

    The paper averages all tokens of a sequence (eq. 1); mask, skip, causal and the layouts of maps are added here.

    Args:
        dim: width of the tokens; only scale=True needs it.
        scale: False gives CB; True CB_S, whose Λ starts at zero (the paper gives no start); "fixed" is CB_S with Λ = 1,
            which the paper does not try.
        layout: "NLC" or "NHWC" (channels last, tokens of any number of axes) or "NCHW".
        skip: how many tokens at the front of a sequence take no part.
        causal: the mean of a token runs over itself and those before it, as in a language model.
    """

    def __init__(
        self,
        dim: int | None = None,
        *,
        scale: bool | Literal["fixed"] = False,
        layout: str = "NLC",
        skip: int = 0,
        causal: bool = False,
    ) -> None:
        super().__init__(layout=layout, skip=skip, causal=causal)
        require_choice("scale", scale, (True, False, "fixed"))
        if scale is True and dim is None:
            raise ValueError("scale=True learns one weight per channel: also give dim, the width of the tokens")
        self.fixed = scale == "fixed"
        self.scale = nn.Parameter(torch.zeros(dim)) if scale is True and dim is not None else None

    def combine(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return (x + mean) / 2, or x + scale * mean, where a fixed scale is 1."""
        if self.fixed:
            return x + mean  # CB_S with Λ = 1
        if self.scale is None:
            return 0.5 * x + 0.5 * mean  # eq. 1
        shape = [1] * x.ndim
        shape[self.channel] = -1
        return x + self.scale.view(shape).to(x.dtype) * mean  # CB_S, Λ is `scale`


def token_mean(x: Tensor, mask: Tensor | None = None, *, channel: int = -1) -> Tensor:
    """Average tokens over every axis but the first and `channel`, kept as axes of one; half precision sums in float32.

    Args:
        x: tokens.
        mask: true where a token counts, one wide in the channels; a sequence without any has the mean zero.
        channel: the axis of the channels, 1 or -1.
    """
    axes = [axis for axis in range(1, x.ndim) if axis != channel % x.ndim]
    if mask is None:
        return upcast(x).mean(axes, keepdim=True).to(x.dtype)
    # A masked token may hold anything, even NaN: it is replaced, not multiplied by zero.
    total = upcast(x).masked_fill(~mask, 0).sum(axes, keepdim=True)
    return (total / mask.sum(axes, keepdim=True).clamp_min(1)).to(x.dtype)


def running_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average each token of a sequence B, N, C with those before it; `mask` as in `token_mean`."""
    if x.ndim != 3:
        raise ValueError(f"a causal mean needs a sequence B, N, C, got shape {tuple(x.shape)}")
    if mask is None:
        mask = torch.ones_like(x[..., :1], dtype=torch.bool)
    total = upcast(x).masked_fill(~mask, 0).cumsum(1)
    return (total / mask.cumsum(1).clamp_min(1)).to(x.dtype)
