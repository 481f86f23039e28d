"""Semantic segmentation."""

from .heads import HEADS, Segmenter, register_head
from .task import Segment

__all__ = ["HEADS", "Segment", "Segmenter", "register_head"]
