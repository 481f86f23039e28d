"""Helpers that several files of the tests of sot use."""

from typing import Any

import timm
import torch

from saccade.models.sot import SoT

SMALL: dict[str, Any] = {"embed_dim": 16, "depth": 2, "num_heads": 2, "cov_heads": 2, "cov_dim": 3, "num_classes": 5}


def small(**options: Any) -> SoT:
    torch.manual_seed(0)
    return timm.create_model("sot_tiny", **{**SMALL, "img_size": 64, **options})


def on_meta(name: str, **options: Any) -> SoT:
    with torch.device("meta"):
        return timm.create_model(name, **options)
