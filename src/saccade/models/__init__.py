"""Backbones, one family per file; importing this package registers them with timm."""

from . import cvt, glnet, nommer, sot, t2t
from ._identify import list_backbones, require_model
from ._official import CheckpointError, LoadReport, load_official

__all__ = [
    "CheckpointError",
    "LoadReport",
    "cvt",
    "glnet",
    "list_backbones",
    "load_official",
    "nommer",
    "require_model",
    "sot",
    "t2t",
]
