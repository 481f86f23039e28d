"""Sentences and pairs of sentences, each of one class."""

from .task import ClassifyText

__all__ = ["ClassifyText"]
