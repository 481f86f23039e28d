"""Padding of images that are too small for a network's strides."""

import torch.nn.functional as F
from timm.models import register_notrace_function
from torch import Tensor


def pad_to(x: Tensor, side: int) -> Tensor:
    """Pad an image with zeros at the right and below to a smallest side, where poolings would leave no pixel.

    Sizes that are symbolic while a model is being exported are taken to be large enough.
    """
    height, width = x.shape[2:]
    if not (isinstance(height, int) and isinstance(width, int)) or min(height, width) >= side:
        return x
    return F.pad(x, (0, max(0, side - width), 0, max(0, side - height)))


register_notrace_function(pad_to)  # it looks at sizes
