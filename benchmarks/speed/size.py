"""Parameters and multiply-adds of a model, counted without computing anything."""

from typing import Any

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.settings.model_sizes import Count


def model_size(name: str, img_size: int | None = None, **kwargs: Any) -> Count:
    """Count a registered model's parameters and multiply-adds.

    Args:
        name: a name timm knows, ours included.
        img_size: image side to count at; the model's own by default.
        kwargs: passed to `timm.create_model`.
    """
    if img_size is not None:
        kwargs["img_size"] = img_size
    with torch.device("meta"):
        model: Any = timm.create_model(name, **kwargs).eval()
        channels, *_, side = model.pretrained_cfg["input_size"]
        side = img_size or side
        image = torch.empty(1, channels, side, side)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    params = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Count(params=params, macs=counter.get_total_flops() // 2, img_size=side)
