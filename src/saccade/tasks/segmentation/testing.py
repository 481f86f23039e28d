"""Inference of segmenters: whole images, sliding windows, several scales, flips; classes in the image's own frame."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.frame import at_once
from ...data.framing import fitted

SCORES = 2**22  # most resized scores in memory of a CPU

Ask = Callable[[Tensor], Tensor]  # images B, C, H, W -> logits B, K, H, W


def answer_sliding(ask: Ask, images: Tensor, *, window: int) -> Tensor:
    """Return logits averaged over sliding windows that overlap by a third; the last ones end at the edge."""
    height, width = images.shape[-2:]
    stride = max(round(window * 2 / 3), 1)
    total, count = None, images.new_zeros(1, 1, height, width)
    for top in _starts(height, window, stride):
        for left in _starts(width, window, stride):
            place = (..., slice(top, top + window), slice(left, left + window))
            found = ask(images[place])
            if total is None:
                total = found.new_zeros(len(images), found.shape[1], height, width)
            total[place] += found
            count[place] += 1
    assert total is not None
    return total.div_(count) if total.dtype == count.dtype else total / count  # no second copy


def answer_scales(answer: Ask, images: Tensor, *, scales: Sequence[float], flip: bool) -> Tensor:
    """Return the log of probabilities averaged over scales and, with `flip`, flipped images.

    Args:
        answer: inference on whole images or sliding windows.
        scales: resize factors of the images.
    """
    size = images.shape[-2:]
    total: Tensor | int = 0
    for scale in scales:
        scaled = images
        if scale != 1:
            sides = [max(round(side * scale), 1) for side in size]
            scaled = F.interpolate(images, sides, mode="bilinear", align_corners=False, antialias=scale < 1)
        for mirrored in (False, True) if flip else (False,):
            logits = answer(scaled.flip(-1) if mirrored else scaled)
            logits = logits.flip(-1) if mirrored else logits
            logits = F.interpolate(logits.float(), size, mode="bilinear", align_corners=False)
            total = total + logits.softmax(1)
    assert isinstance(total, Tensor)
    return (total / (len(scales) * (1 + flip))).clamp(min=torch.finfo(torch.float32).tiny).log()


def own_classes(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class with the highest score for each pixel of letterboxed images, B, H, W int16.

    Scores are resized bilinearly, a strip of rows at a time, so that memory does not grow with the image.

    Args:
        scores: scores of the letterboxed images, B, K, H, W.
        size: height and width of the original images.
    """
    (height, width), (batch, classes, *canvas) = size, scores.shape
    left, top, wide, high = fitted(height, width, (canvas[0], canvas[1]))
    inside = scores[..., top : top + high, left : left + wide]
    at = ((torch.arange(height, device=scores.device) + 0.5) * (high / height) - 0.5).clamp(0, high - 1)
    above = at.long()
    below, share = (above + 1).clamp(max=high - 1), (at - above)[:, None].to(scores.dtype)
    found = torch.empty(batch, height, width, dtype=torch.int16, device=scores.device)
    for rows in torch.arange(height).split(max(at_once(scores.device, SCORES) // (batch * classes * width), 1)):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        strip = torch.lerp(inside[..., above[part], :], inside[..., below[part], :], share[part])
        strip = F.interpolate(strip, (len(rows), width), mode="bilinear", align_corners=False)
        found[:, part] = strip.max(1).indices  # on a CPU ten times as fast as argmax
    return found


def _starts(side: int, window: int, stride: int) -> list[int]:
    """Return the start positions of windows along a side."""
    if side <= window:
        return [0]
    return [*range(0, side - window, stride), side - window]
