"""NomMer: let every place of a map nominate its context (supplement, Algorithm 1)."""

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn

from ..settings.values import require_choice
from .dct import DCTAttention
from .numerics import upcast
from .tap import Tap
from .window import WindowAttention

CANDIDATES = ("cnn", "window", "global")  # F^(C), F^(L), F^(G), in the order of table 3
Nomination = Literal["hard", "soft"]
TINY = 1e-20  # keeps the logarithms of Gumbel noise finite (published code)


@register_notrace_module
class Synergy(nn.Module):
    """The mixer of an S-NomMer block (Algorithm 1, lines 12-15): contexts of a map, one nominated at each place.

    A single candidate needs no nominator. Prefix tokens, which the supplement does not have, have no place on the map,
    hence no convolution and no window: they take part in the global attention beside the map's blocks, and what they
    get there is their context.

    Args:
        dim: channels.
        num_heads: heads of both attentions.
        window_size: side of the attention windows, wsize of table 3.
        dct_size: side of the blocks that the global attention sees, ksize of table 3.
        cnn_reduction: `dim` over the width of the bottleneck convolution.
        candidates: some of `CANDIDATES`, in that order.
        nomination: "hard" or "soft".
        temperature: of the nomination's softmax.
        prefix: how many prefix tokens there are.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        window_size: int,
        dct_size: int,
        cnn_reduction: int,
        candidates: Sequence[str] = CANDIDATES,
        nomination: Nomination = "hard",
        temperature: float = 1.0,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.cnn = ConvAggregator(dim, reduction=cnn_reduction) if "cnn" in candidates else None
        self.window = (
            WindowAttention(dim, num_heads=num_heads, window_size=window_size) if "window" in candidates else None
        )
        # CGCA; the transform is a constant inside of it.
        self.dct = DCTAttention(dim, num_heads=num_heads, block_size=dct_size) if "global" in candidates else None
        nominator = Nominator(dim, count=len(candidates), nomination=nomination, temperature=temperature)
        self.nominator = nominator if len(candidates) > 1 else None  # SCN

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix tokens, B, prefix + H * W, C."""
        prefix, tokens = x[:, : self.prefix], x[:, self.prefix :]
        places = tokens.unflatten(1, grid)  # B, H, W, C
        contexts = []
        if self.cnn is not None:
            contexts.append(self.cnn(places))  # Algorithm 1, line 13
        if self.window is not None:
            contexts.append(self.window(tokens, grid))  # line 12
        if self.dct is not None:
            blocks = self.dct.compress(places)  # line 14, with the prefix among the tokens of G-MHSA
            blocks = self.dct.attn(torch.cat([prefix, blocks], dim=1) if self.prefix else blocks)
            prefix = blocks[:, : self.prefix]
            contexts.append(self.dct.expand(blocks[:, self.prefix :], grid))
        else:
            prefix = torch.zeros_like(prefix)
        mixed = (self.nominator(contexts) if self.nominator is not None else contexts[0]).flatten(1, 2)  # line 15
        return torch.cat([prefix, mixed], dim=1) if self.prefix else mixed


class Nominator(nn.Module):
    """SCN, synergistic context nominator (Algorithm 1, lines 7-10): nominate one of several contexts at every place.

    A hard nomination takes the best-scored context; in training Gumbel noise is added to the scores and the gradient
    is that of the noisy softmax. A soft one mixes the contexts by a plain softmax, without noise.

    A visualisation hooks the Taps `scores` and `nomination`, both B, H, W, count.

    Args:
        dim: channels.
        count: how many contexts there are.
        nomination: "hard" or "soft".
        temperature: divisor of the scores in every softmax.
    """

    def __init__(self, dim: int, *, count: int = 3, nomination: Nomination = "hard", temperature: float = 1.0) -> None:
        super().__init__()
        require_choice("nomination", nomination, Nomination)
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} was given; it divides the scores and must be above 0")
        self.hard = nomination == "hard"
        self.temperature = temperature
        self.fc = nn.Linear(dim, count)
        self.scores = Tap()
        self.nomination = Tap()

    def forward(self, candidates: Sequence[Tensor]) -> Tensor:
        """Nominate between maps, each B, H, W, C, and return a map of that shape."""
        grid = candidates[0].shape[1:3]
        contexts = [candidate.flatten(1, 2) for candidate in candidates]  # B, H * W, C
        scores = self.fc(reduce(torch.add, contexts))  # line 8, Omega; the paper's Conv is 1x1, hence a linear layer
        scores = self.scores(scores.unflatten(1, grid))  # B, H, W, count
        weights = self.nomination(self.weigh(scores)).to(contexts[0].dtype).flatten(1, 2)
        nominated = contexts[0] * weights[..., :1]  # line 9, the sum of contexts by their weights
        for i, context in enumerate(contexts[1:], 1):
            nominated = torch.addcmul(nominated, context, weights[..., i : i + 1])
        return nominated.unflatten(1, grid)

    def weigh(self, scores: Tensor) -> Tensor:
        """Return the weight of each context at every place, from the scores."""
        if not self.hard:
            return torch.softmax(upcast(scores) / self.temperature, dim=-1)
        return sample_nomination(scores, temperature=self.temperature) if self.training else nominate(scores)


class ConvAggregator(nn.Module):
    """CNN, the convolutional context: a residual bottleneck on a map B, H, W, C; its output is never negative."""

    def __init__(self, dim: int, *, reduction: int) -> None:
        super().__init__()
        if reduction < 1 or dim % reduction:
            raise ValueError(f"cnn_reduction={reduction} does not divide a stage's width {dim}; choose a divisor of it")
        hidden = dim // reduction
        self.conv1 = nn.Conv2d(dim, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.conv3 = nn.Conv2d(hidden, dim, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Mix a map with 3 x 3 neighbourhoods."""
        x = x.permute(0, 3, 1, 2)
        if not isinstance(x.shape[2], int):  # an exporter cannot order the strides of a symbolic map in this layout
            x = x.contiguous()
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = F.relu(self.bn3(self.conv3(y)) + x)
        return y.permute(0, 2, 3, 1)


def nominate(scores: Tensor) -> Tensor:
    """Mark the best score along the last axis with 1 and the others with 0.

    Scores that are exactly equal are all marked, as in the published code, except in half precision: there equality is
    mere rounding, and the first is taken.
    """
    if scores.dtype in (torch.float16, torch.bfloat16):
        return _one_hot(scores)
    return (scores == scores.amax(dim=-1, keepdim=True)).to(scores.dtype)


def sample_nomination(scores: Tensor, *, temperature: float = 1.0, uniform: Tensor | None = None) -> Tensor:
    """Draw one winner along the last axis by the Gumbel trick, with the gradient of the softmax (straight-through).

    Args:
        scores: unnormalised log probabilities.
        temperature: of the softmax that gives the gradient.
        uniform: noise in [0, 1) of the scores' shape; drawn from the device's default generator if not given.

    Returns:
        Exactly one 1 along the last axis, in at least float32.
    """
    soft = gumbel_softmax(scores, temperature=temperature, uniform=uniform)
    return _one_hot(soft.detach()) + (soft - soft.detach())


def gumbel_softmax(scores: Tensor, *, temperature: float = 1.0, uniform: Tensor | None = None) -> Tensor:
    """Softmax of scores with Gumbel noise, in at least float32; arguments as in `sample_nomination`."""
    if uniform is None:
        uniform = torch.rand(scores.shape, dtype=torch.float32, device=scores.device)
    noise = -torch.log(-torch.log(uniform + TINY) + TINY)
    return torch.softmax((upcast(scores) + noise) / temperature, dim=-1)


def _one_hot(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
