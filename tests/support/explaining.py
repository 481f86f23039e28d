"""Helpers that several files of the tests of explain use."""

import numpy as np
import timm
import torch

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 2}


def vit(**options):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **{**VIT, "num_classes": 4, **options})


def photo(seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)


def views_of(explanation, place=0):
    return {view.key: view for view in explanation.samples[place].views}
