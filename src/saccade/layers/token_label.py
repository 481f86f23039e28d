"""Token labelling: MixToken, which swaps a box of tokens between images, and the loss on class and token labels."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .numerics import upcast


class TokenBox(NamedTuple):
    """A box of tokens on a grid, its far edges excluded; edges that are tensors let a compiled graph take any box."""

    top: int | Tensor
    left: int | Tensor
    bottom: int | Tensor
    right: int | Tensor

    @property
    def area(self) -> int | Tensor:
        """Number of tokens in the box."""
        return (self.bottom - self.top) * (self.right - self.left)

    def scaled(self, rows: int, columns: int | None = None) -> "TokenBox":
        """Return the same box on a grid with `rows` times the rows and `columns` (or as many) times the columns."""
        columns = rows if columns is None else columns
        return TokenBox(self.top * rows, self.left * columns, self.bottom * rows, self.right * columns)


class TokenLabelOutput(NamedTuple):
    """What token labelling trains on."""

    logits: Tensor  # B, classes
    tokens: Tensor  # B, L, classes: every token of its own image, the box swapped back
    box: TokenBox


def sample_box(
    grid: tuple[int, int], *, lam: float | None = None, generator: torch.Generator | None = None
) -> TokenBox:
    """Draw a box that covers about 1 - lam of a grid, its centre anywhere, cut off at the edges.

    Args:
        grid: height and width.
        lam: share to keep, uniform in [0, 1), which is Beta(1, 1), if not given.
        generator: source of randomness on the CPU.
    """
    if lam is None:
        lam = float(torch.rand((), generator=generator))
    edges = []
    for size in grid:
        half = int(size * math.sqrt(1 - lam)) // 2
        centre = int(torch.randint(size, (), generator=generator))
        edges.append((max(centre - half, 0), min(centre + half, size)))
    (top, bottom), (left, right) = edges
    return TokenBox(top, left, bottom, right)


def draw_place(*, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
    """Draw what `place_box` needs: the share to keep and the centre's row and column, uniform in [0, 1)."""
    return torch.rand(3, device=device, generator=generator)


def place_box(place: Tensor, grid: tuple[int, int]) -> TokenBox:
    """Put a drawn box on a grid as `sample_box` does, its edges tensors on the device of the draw.

    Args:
        place: lam and the centre's row and column as shares of the grid, 3.
        grid: height and width.
    """
    if place.shape != (3,):
        raise ValueError(
            f"a place of shape {tuple(place.shape)} was given; its shape must be (3,), as `draw_place` returns it"
        )
    place = upcast(place)
    sizes = torch.tensor(grid, device=place.device)
    half = (sizes * (1 - place[0]).sqrt()).long() // 2
    centre = (sizes * place[1:]).long().minimum(sizes - 1)  # a product may round up to the size
    (top, left), (bottom, right) = (centre - half).clamp_min(0).unbind(), (centre + half).minimum(sizes).unbind()
    return TokenBox(top, left, bottom, right)


def swap_box(x: Tensor, box: TokenBox) -> Tensor:
    """Swap a box of a map B, C, H, W with that of the batch in reverse order; doing it twice undoes it."""
    row = torch.arange(x.shape[2], device=x.device)[:, None]
    column = torch.arange(x.shape[3], device=x.device)
    inside = (row >= box.top) & (row < box.bottom) & (column >= box.left) & (column < box.right)
    return torch.where(inside, x.flip(0), x)


def token_label_loss(
    output: TokenLabelOutput,
    targets: Tensor,
    *,
    cls_weight: float = 1.0,
    dense_weight: float = 0.5,
    ground_truth: bool = False,
) -> Tensor:
    """Return the soft cross-entropy of the class logits plus that of every token.

    The class target is mixed as the box mixed the images; the tokens' targets need not be, their logits were swapped
    back.

    Args:
        output: class logits, token logits and the box, on the tokens' grid.
        targets: distributions over classes, B, classes, 2 + L: the ground truth, the teacher's for the whole crop, the
            teacher's for each token.
        cls_weight: weight of the class term.
        dense_weight: weight of the token term.
        ground_truth: blend the teacher's class label with the ground truth, a tenth of it, half where both agree.
    """
    tokens = output.tokens
    if targets.shape[2] != 2 + tokens.shape[1]:
        raise ValueError(
            f"targets have {targets.shape[2] - 2} token labels, but the output has {tokens.shape[1]} tokens; make "
            "the labels on the output's grid"
        )
    class_loss, dense_loss = token_label_terms(
        output,
        label=targets[:, :, 1],
        dense=targets[:, :, 2:].mT,
        truth=targets[:, :, 0] if ground_truth else None,
    )
    return cls_weight * class_loss + dense_weight * dense_loss


def token_label_terms(
    output: TokenLabelOutput,
    *,
    label: Tensor,
    dense: Tensor,
    truth: Tensor | None = None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the two terms of `token_label_loss`, of the class and of the tokens.

    Args:
        output: class logits, token logits and the box, on the tokens' grid.
        label: the teacher's distribution for each whole image, B, classes.
        dense: the teacher's distribution for each token, B, L, classes.
        truth: ground truth to blend with `label`, B, classes: a tenth of it, half where both agree.
        weight: how much each class counts, classes.
    """
    logits, tokens, box = output
    if truth is not None:
        agree = truth.argmax(1, keepdim=True) == label.argmax(1, keepdim=True)
        label = torch.lerp(truth, label, 0.9 - 0.4 * agree.to(label.dtype))
    mixed = box.area / tokens.shape[1]
    label = (1 - mixed) * label + mixed * label.flip(0)
    if weight is not None:
        label, dense = label * weight, dense * weight
    return _soft_cross_entropy(logits, label), _soft_cross_entropy(tokens, dense)


def _soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * F.log_softmax(upcast(logits), dim=-1)).sum(dim=-1).mean()
