"""Better context for vision transformers; importing it registers the backbones with timm."""

from .models import CheckpointError, LoadReport, list_backbones, load_official

__version__ = "0.1.0.dev0"
__all__ = ["CheckpointError", "LoadReport", "list_backbones", "load_official"]
