"""Every registered backbone, and a shallow version of each that keeps its widths and kinds of block."""

from typing import Any

import timm
from torch import nn

import saccade

NAMES = saccade.list_backbones()
PYRAMIDS = [name for name in NAMES if name.startswith(("nommer", "glnet", "cvt"))]
COLUMNS = [name for name in NAMES if name.startswith(("sot", "t2t"))]
FAMILIES = ["nommer_tiny", "glnet_stl", "glnet_4g", "sot_7", "cvt_13", "t2t_vit_7"]


def shallow(name: str, **kwargs: Any) -> nn.Module:
    """Build a variant with as few blocks as show all its kinds of block."""
    if name.startswith("nommer"):
        kwargs.setdefault("depths", (1, 1, 1, 1))
    elif name == "glnet_nano":
        kwargs.setdefault("depths", (1, 2, 1))
    elif name.startswith("glnet"):
        kwargs.setdefault("depths", (1, 1, 2, 1))
    elif name.startswith("cvt"):
        kwargs.setdefault("depths", (1, 1, 1))
    else:
        kwargs.setdefault("depth", 2)
    return timm.create_model(name, **kwargs)
