"""Object detection: boxes, classes and masks."""

from .task import Detect

__all__ = ["Detect"]
