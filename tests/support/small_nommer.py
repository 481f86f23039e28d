"""Helpers that several files of the tests of nommer use."""

import timm
import torch

import saccade.models.nommer  # noqa: F401  (registers the models)
from saccade.models.nommer import NomMer

SMALL = {"embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2), "num_classes": 5, "img_size": 64}


def small(**options) -> NomMer:
    torch.manual_seed(0)
    return timm.create_model("nommer_tiny", **{**SMALL, "drop_path_rate": 0.0, **options})
