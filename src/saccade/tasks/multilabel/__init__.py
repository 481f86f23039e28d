"""Multi-label classification."""

from .task import Multilabel

__all__ = ["Multilabel"]
