"""Second-order pooling of word tokens Z: cross-covariance in several heads (MGCrP), covariance (GCP); SoT table 2."""

import math
from typing import Literal

import torch
from timm.models import register_notrace_module
from torch import Tensor, nn

from ..settings.values import choices, from_none, require_choice
from .matrix_norms import Axis, ElementPower, RowNorm, Scale, SquareRoot
from .numerics import full_precision, upcast
from .svpn import ApproximateSVPN, ExactSVPN

Centring = Literal["scalar", "channel", "none"] | None  # "none" is None, here and below
CrossNorm = Literal["svpn", "svpn_exact", "sqrt_d", "sqrt_t", "epn", "layer_norm", "none"] | None
SelfNorm = Literal["isqrt", "power", "none"] | None
Start = Literal["learned", "ones"]
Divisor = Literal["channels", "tokens"]


@register_notrace_module
class CrossCovariance(nn.Module):
    """Multi-headed global cross-covariance pooling (MGCrP), svPN(W_i Z Z^T R_i^T / q) of every head i; SoT eq. 2 and 3.

    Args:
        dim: token width.
        num_heads: heads, each with two projections of its own.
        head_dim: width of a projection, m = n of table S-1; a head gives head_dim**2 numbers.
        centring: what is taken from each projection before the product: "scalar", one mean over tokens and channels
            (the published code), "channel", a mean for each channel, or None (the paper's equations).
        normalization: of table 4d "svpn" (approximate), "svpn_exact", "sqrt_t" (1 / tau: times a learned number that
            starts at head_dim**-0.5), "epn" (signed square root and unit length), "layer_norm" (LN; over the last axis
            in the published code) or None; "sqrt_d" (times head_dim**-0.5) is only in the published code.
        alpha, num_sv, num_iter, start: settings of svPN, see `ApproximateSVPN`.
        positive: keep the learned number of "sqrt_t" above zero, as the paper says and the published code does not.
        epn_axis: unit length of each "column" of a head's matrix (published code) or of all heads' numbers together,
            "vector" (the paper says only l2 normalisation).
        drop_rate: dropout of the normalised representation.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 6,
        head_dim: int = 14,
        centring: Centring = "scalar",
        normalization: CrossNorm = "svpn",
        alpha: float = 0.5,
        num_sv: int | Literal["none"] | None = 1,
        num_iter: int = 1,
        start: Start = "learned",
        positive: bool = False,
        epn_axis: Axis = "column",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.centring = checked_centring(centring)
        self.width = num_heads * head_dim * head_dim  # of what forward returns
        self.proj = nn.Linear(dim, 2 * num_heads * head_dim, bias=False)
        norms = {
            "svpn": lambda: ApproximateSVPN(
                head_dim, alpha=alpha, num_sv=from_none(num_sv), num_iter=num_iter, start=start
            ),
            "svpn_exact": lambda: ExactSVPN(alpha),
            "sqrt_d": lambda: Scale(head_dim**-0.5, learned=False),
            "sqrt_t": lambda: Scale(head_dim**-0.5, learned=True, positive=positive),
            "epn": lambda: ElementPower(epn_axis),
            "layer_norm": lambda: RowNorm(head_dim, eps=1e-5),
            None: nn.Identity,
        }
        require_choice("normalization", normalization, CrossNorm)
        self.norm: nn.Module = norms[from_none(normalization)]()
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens B, N, C, of which those with mask (B, N) true count, to B, heads * head_dim**2."""
        # X = W_i Z and Y = R_i Z of all heads i, B, heads, N, head_dim each; `proj` holds the rows of W, then of R
        wz, rz = self.proj(x).unflatten(2, (2, self.num_heads, self.head_dim)).transpose(1, 3).unbind(2)
        with full_precision(x):
            # Q = X Y^T / q with centring: B, heads, head_dim, head_dim; q is the number of tokens
            cross = covariance(wz, rz, mask=None if mask is None else mask[:, None], centring=self.centring)
            cross = self.norm(cross)  # eq. 2 for each head
        return self.drop(cross.flatten(1).to(x.dtype))  # eq. 3 concatenates the heads


@register_notrace_module
class Covariance(nn.Module):
    """Global covariance pooling (GCP) with matrix power normalisation (MPN); its upper triangle, row by row.

    The GCP of table 2 has no projection; here tokens are projected first, with a bias (published code).

    Args:
        dim: token width.
        num_heads, head_dim: give the width int(sqrt(2 num_heads head_dim**2)) of the projection, for a result about as
            long as that of `CrossCovariance`: by default 48 channels and so the 1176 numbers of table 3b.
        centring: as in `CrossCovariance`.
        divisor: "channels" divides by the width (the published code), "tokens" by the number of tokens (the paper).
        normalization: "isqrt" (iterated square root), "power" (exact: svPN of a symmetric positive semi-definite
            matrix is MPN) or None.
        alpha: exponent of "power".
        num_iter: iterations of "isqrt".
        drop_rate: dropout of the normalised representation.
    """

    triangle: Tensor

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 6,
        head_dim: int = 14,
        centring: Centring = "scalar",
        divisor: Divisor = "channels",
        normalization: SelfNorm = "isqrt",
        alpha: float = 0.5,
        num_iter: int = 3,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if divisor not in choices(Divisor):
            raise ValueError(f"divisor={divisor!r} was given; allowed are 'channels' and 'tokens'")
        proj_dim = math.isqrt(2 * num_heads * head_dim**2)
        self.centring = checked_centring(centring)
        self.divisor = divisor
        self.width = proj_dim * (proj_dim + 1) // 2  # of what forward returns
        self.proj = nn.Linear(dim, proj_dim)
        norms = {"isqrt": lambda: SquareRoot(num_iter), "power": lambda: ExactSVPN(alpha), None: nn.Identity}
        require_choice("normalization", normalization, SelfNorm)
        self.norm: nn.Module = norms[from_none(normalization)]()
        self.drop = nn.Dropout(drop_rate)
        row, column = torch.triu_indices(proj_dim, proj_dim)
        self.register_buffer("triangle", row * proj_dim + column, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens B, N, C, of which those with mask (B, N) true count, to B, width."""
        x = self.proj(x)
        count = x.shape[2] if self.divisor == "channels" else None
        with full_precision(x):
            p = self.norm(covariance(x, x, mask=mask, centring=self.centring, divisor=count))
        return self.drop(p.flatten(1).index_select(1, self.triangle).to(x.dtype))


class Average(nn.Module):
    """Global average pooling (GAP)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.width = dim

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens B, N, C, of which those with mask (B, N) true count, to B, C."""
        return x.mean(1) if mask is None else masked_mean(x, mask).squeeze(1).to(x.dtype)


def covariance(
    x: Tensor, y: Tensor, *, mask: Tensor | None = None, centring: Centring = "scalar", divisor: int | None = None
) -> Tensor:
    """Return X^T Y / N of centred tokens, in at least float32; tokens are rows here and columns in the paper.

    Args:
        x, y: tokens, ..., N, m and ..., N, n.
        mask: true for the tokens that count, ..., N.
        centring: "scalar", "channel" or None; see `CrossCovariance`.
        divisor: divide by this instead of the number of tokens that count.
    """
    same = x is y
    x = centred(x, mask, centring)
    y = x if same else centred(y, mask, centring)
    if divisor is not None:
        return x.mT @ y / divisor
    if mask is None:
        return x.mT @ y / x.shape[-2]
    return x.mT @ y / mask.sum(-1).clamp_min(1)[..., None, None]


def centred(x: Tensor, mask: Tensor | None, centring: Centring) -> Tensor:
    """Subtract the mean from tokens ..., N, m and set those that do not count to zero."""
    x = upcast(x)
    if centring is not None:
        mean = x.mean(-2, keepdim=True) if mask is None else masked_mean(x, mask)
        x = x - (mean.mean(-1, keepdim=True) if centring == "scalar" else mean)
    return x if mask is None else x.masked_fill(~mask[..., None], 0)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Average tokens ..., N, m over those that count, ..., 1, m, in at least float32."""
    x = upcast(x).masked_fill(~mask[..., None], 0)  # zero times infinity would not do
    return x.sum(-2, keepdim=True) / mask.sum(-1).clamp_min(1)[..., None, None]


def checked_centring(centring: Centring) -> Centring:
    """Check a centring and turn "none" into None."""
    require_choice("centring", centring, Centring)
    return from_none(centring)
