"""Text classification of sentences and pairs."""

from .task import ClassifyText

__all__ = ["ClassifyText"]
