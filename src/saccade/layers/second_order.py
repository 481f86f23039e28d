"""The classification head of SoT (eq. 1, figure 2): class token z_0 and pooled word tokens Z, for any transformer."""

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..settings.values import from_none, require_choice
from .covpool import Average, Covariance, CrossCovariance
from .init import init_linear

Fusion = Literal["sum", "concat", "aggr_all", "late"]
Pooling = Literal["mgcrp", "gcp", "gap", "fc", "none"] | None  # "none" is None, here and below
ClassToken = Literal["first", "last", "none"] | None
Late = Literal["logits", "scores"]


class SecondOrder(nn.Module):
    """Classify from the class token z_0 and a pooled representation of the word tokens Z; SoT eq. 1.

    Wherever None is a choice, "none" means the same: `timm.create_model` leaves out arguments that are None.

    Args:
        dim: token width.
        num_classes: classes; zero makes the head return its representation.
        fusion: the four lines of eq. 1. "sum" adds the logits of two linear layers, "concat" classifies [z_0, pool(Z)],
            "aggr_all" pools [z_0, Z], "late" trains two classifiers (see `logits_pair`).
        pooling: "mgcrp" (cross-covariance in heads), "gcp" (covariance), "gap" (average), "fc" (no words: a linear
            layer widens the class token) or None (class token only).
        class_token: "first" or "last" (the last token that counts, as GPT needs it), or None: words only, whatever the
            fusion.
        num_prefix_tokens: tokens at the front that are not words: the class token if it is first, registers. One if
            the class token is first, else none, unless given.
        last_is_no_word: without a class token, leave the last token that counts out of the words: it is what a causal
            model gathers a text in, as the first token is of others.
        num_heads, head_dim: size of "mgcrp" and "gcp".
        drop_rate: dropout of what "mgcrp" and "gcp" return.
        late: "logits" adds the two raw logits outside of training losses (the published code), "scores" gives the
            logarithm of the mean of both softmax scores (the paper).
        hidden_dim: width of "fc".
        options: other settings of "mgcrp" and "gcp", see `CrossCovariance` and `Covariance`.
    """

    option_sources = (CrossCovariance, Covariance)
    option_hidden = ("dim",)
    place: Tensor
    class_fc: nn.Linear | None
    word_fc: nn.Linear | None

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        fusion: Fusion = "sum",
        pooling: Pooling = "mgcrp",
        class_token: ClassToken = "first",
        num_prefix_tokens: int | None = None,
        last_is_no_word: bool = False,
        num_heads: int = 6,
        head_dim: int = 14,
        drop_rate: float = 0.0,
        late: Late = "logits",
        hidden_dim: int = 1280,
        **options: Any,
    ) -> None:
        super().__init__()
        require_choice("fusion", fusion, Fusion)
        require_choice("pooling", pooling, Pooling)
        require_choice("class_token", class_token, ClassToken)
        require_choice("late", late, Late)
        pooling, class_token = from_none(pooling), from_none(class_token)
        if class_token is None and pooling in ("fc", None):
            raise ValueError(f"pooling={pooling!r} uses only the class token, but class_token=None excludes it")
        if num_prefix_tokens is None:
            num_prefix_tokens = int(class_token == "first")
        if class_token == "first" and num_prefix_tokens < 1:
            raise ValueError(
                f"num_prefix_tokens={num_prefix_tokens} was given, but class_token='first' needs at least 1"
            )
        self.fusion = fusion
        self.class_token = class_token
        self.num_prefix_tokens = num_prefix_tokens
        self.last_is_no_word = last_is_no_word and class_token is None
        self.late = late
        self.pool = _pool(pooling, dim, options, num_heads=num_heads, head_dim=head_dim, drop_rate=drop_rate)
        self.hidden: nn.Module = nn.Linear(dim, hidden_dim) if pooling == "fc" else nn.Identity()

        self.class_width = hidden_dim if pooling == "fc" else dim
        if class_token is None or (self.pool is not None and fusion == "aggr_all"):
            self.class_width = 0
        self.word_width = 0 if self.pool is None else cast(int, self.pool.width)
        self.width = self.class_width + self.word_width
        self.register_buffer("place", torch.empty(0), persistent=False)  # tells device and precision
        self.apply(init_linear)
        self.reset(num_classes)

    def reset(self, num_classes: int) -> None:
        """Replace the linear classifiers; with zero classes the head returns its representation, B, width."""
        self.num_classes = num_classes
        joint = self.fusion == "concat" and self.class_width > 0 and self.word_width > 0
        widths = (0, self.width) if joint else (self.class_width, self.word_width)
        self.class_fc, self.word_fc = (self.classifier(width) if width and num_classes else None for width in widths)

    def classifier(self, width: int) -> nn.Linear:
        """Return a fresh linear classifier where the head is and in its precision."""
        layer = nn.Linear(width, self.num_classes, device=self.place.device, dtype=self.place.dtype)
        init_linear(layer)
        return layer

    def represent(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Return what stands for the class token, B, class_width, and for the words, B, word_width; None if not used.

        Args:
            x: tokens, B, N, C, after the final norm.
            mask: true for tokens that count, B, N; padding of a text has false.
        """
        token, words, mask = self.split(x, None if mask is None else mask.bool())
        return (
            self.hidden(token) if self.class_width and token is not None else None,
            self.pool(words, mask) if self.pool is not None else None,
        )

    def split(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Return the class token, B, C, the tokens to pool, and the mask that belongs to these."""
        if mask is not None:
            return self._split_masked(x, mask)
        prefix, everything = self.num_prefix_tokens, self.fusion == "aggr_all"
        words = x[:, prefix:]
        if self.class_token is None:
            return None, words[:, :-1] if self.last_is_no_word and not everything else words, None
        if self.class_token == "first":
            return x[:, 0], torch.cat([x[:, :1], words], dim=1) if everything else words, None
        return x[:, -1], words if everything else words[:, :-1], None

    def _split_masked(self, x: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Do the same where padding stands on either side: what is first and last is told by the mask."""
        place = torch.arange(x.shape[1], device=x.device)
        first, last = mask.int().argmax(1, keepdim=True), (place * mask).amax(1, keepdim=True)  # B, 1
        at = last if self.class_token == "last" else first
        words = mask & (place >= first + self.num_prefix_tokens)
        everything = self.fusion == "aggr_all"
        if everything and self.class_token == "first":
            words = words | (mask & (place == first))
        if not everything and (self.class_token == "last" or self.last_is_no_word):
            words = words & (place != last)
        if self.class_token is None:
            return None, x, words
        return x.gather(1, at[..., None].expand(-1, -1, x.shape[2])).squeeze(1), x, words

    @property
    def has_pair(self) -> bool:
        """Whether class token and words have a classifier each."""
        return self.class_fc is not None and self.word_fc is not None

    def logits_pair(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits of class token and words apart, B, num_classes each.

        Late fusion is trained with the sum of both losses; sum fusion adds the two.
        """
        if self.class_fc is None or self.word_fc is None:
            raise ValueError(
                f"this head (fusion={self.fusion!r}, num_classes={self.num_classes}) does not have two classifiers; "
                "use fusion='late' or 'sum', a class token, a pooling of patch tokens and at least one class"
            )
        token, words = self.represent(x, mask)
        return self.class_fc(token), self.word_fc(words)

    def forward(self, x: Tensor, mask: Tensor | None = None, pre_logits: bool = False) -> Tensor:
        """Return logits, B, num_classes, or the representation, B, width.

        Args:
            x: tokens, B, N, C, after the final norm.
            mask: true for tokens that count, B, N.
            pre_logits: return the representation: class token, then words.
        """
        parts = [part for part in self.represent(x, mask) if part is not None]
        if pre_logits or self.num_classes == 0:
            return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        layers = [layer for layer in (self.class_fc, self.word_fc) if layer is not None]
        if len(layers) < len(parts):
            return layers[0](torch.cat(parts, dim=1))
        logits = [layer(part) for layer, part in zip(layers, parts, strict=True)]
        if len(logits) == 1:
            return logits[0]
        if self.fusion == "late" and self.late == "scores":
            return torch.logsumexp(torch.stack([x.log_softmax(-1) for x in logits]), dim=0) - math.log(2)
        return logits[0] + logits[1]


def _pool(pooling: Pooling, dim: int, options: dict[str, Any], **size: Any) -> nn.Module | None:
    if pooling == "mgcrp":
        return CrossCovariance(dim, **size, **options)
    if pooling == "gcp":
        return Covariance(dim, **size, **options)
    if options:
        raise TypeError(f"{', '.join(options)} given, but pooling={pooling!r} does not use these options; remove them")
    return Average(dim) if pooling == "gap" else None
