"""Performer: attention by positive random features, linear in the number of tokens (T2T-ViT's token transformer)."""

import math

import torch
from timm.layers import Mlp
from timm.models import register_notrace_module
from torch import Tensor, nn

from .numerics import full_precision, upcast


@register_notrace_module
class Performer(nn.Module):
    """One transformer layer that also changes the width: the residual of its attention is the value, not the input.

    Args:
        dim: width of the tokens that come in.
        out_dim: width of keys, queries and values, and of the tokens that go out.
        num_features: random features that stand for the exponential kernel; half of `out_dim` if not given.
        drop_rate: dropout after attention and after the feed-forward part.
        eps: added to the attention's denominator.
    """

    w: Tensor

    def __init__(
        self,
        dim: int,
        out_dim: int = 64,
        *,
        num_features: int | None = None,
        drop_rate: float = 0.1,
        eps: float = 1e-8,
    ) -> None:
        super().__init__()
        self.out_dim, self.eps = out_dim, eps
        self.norm1 = nn.LayerNorm(dim)
        self.kqv = nn.Linear(dim, 3 * out_dim)
        self.proj = nn.Linear(out_dim, out_dim)
        self.drop = nn.Dropout(drop_rate)
        self.norm2 = nn.LayerNorm(out_dim)
        self.mlp = Mlp(out_dim, out_dim, drop=(0.0, drop_rate))
        self.register_buffer("w", orthogonal_features(num_features or out_dim // 2, out_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens B, N, dim to tokens B, N, out_dim."""
        kqv = self.kqv(self.norm1(x))
        v = kqv.chunk(3, dim=-1)[2]
        x = v + self.drop(self.proj(self.attend(kqv).to(kqv.dtype)))  # the residual is the value
        return x + self.mlp(self.norm2(x))

    def attend(self, kqv: Tensor) -> Tensor:
        """Return attention's output, B, N, out_dim, in at least float32: half precision overflows in the features."""
        with full_precision(kqv):
            kq, v = upcast(kqv).split([2 * self.out_dim, self.out_dim], dim=-1)
            k, q = self.features(kq.unflatten(-1, (2, self.out_dim))).unbind(-2)  # each B, N, num_features
            total = q @ k.sum(1).unsqueeze(-1)  # B, N, 1: D = phi(q) sum phi(k)
            return q @ (k.transpose(1, 2) @ v) / (total + self.eps)  # phi(q) (phi(k)^T v) / D

    def features(self, x: Tensor) -> Tensor:
        """Return phi(x) = exp(w x - |x|^2 / 2) / sqrt(count), whose inner products approximate exp(x · y)."""
        w = upcast(self.w)
        offset = (x.square().sum(-1, keepdim=True) + math.log(len(w))) / 2  # the logarithm divides by sqrt(count)
        # one product; `x @ w.T` would make a small one for every token where `x` is a part of a wider tensor
        dots = (x.flatten(0, -2) @ w.T).unflatten(0, x.shape[:-1])
        return torch.exp(dots - offset)


def orthogonal_features(count: int, dim: int) -> Tensor:
    """Draw `count` orthogonal rows of length sqrt(count), shape count, dim."""
    if not 0 < count <= dim:
        raise ValueError(f"{count} orthogonal features were requested in {dim} dimensions; choose 1 to {dim}")
    return nn.init.orthogonal_(torch.empty(count, dim), gain=math.sqrt(count))
