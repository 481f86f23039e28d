"""Answers as they are drawn: masks pasted into images, boxes and names on them."""

import torch
import torch.nn.functional as F
from torch import Tensor

THRESHOLD = 0.5  # chance from which a pixel is an object's


def paste_masks(masks: Tensor, boxes: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Return which pixels of an image are each object's, K, H, W bool.

    Args:
        masks: chances within the boxes, K, side, side.
        boxes: in pixels, K, 4.
        size: height and width of the image.
    """
    height, width = (size, size) if isinstance(size, int) else size
    left, top, right, bottom = boxes.float().unbind(-1)
    across = (torch.arange(width, device=boxes.device) + 0.5)[None]
    down = (torch.arange(height, device=boxes.device) + 0.5)[None]
    x = (across - left[:, None]) / (right - left).clamp(min=1e-3)[:, None] * 2 - 1
    y = (down - top[:, None]) / (bottom - top).clamp(min=1e-3)[:, None] * 2 - 1
    grid = torch.stack([x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], dim=-1)
    pasted = F.grid_sample(masks[:, None].float(), grid, align_corners=False)[:, 0]
    return pasted >= THRESHOLD
