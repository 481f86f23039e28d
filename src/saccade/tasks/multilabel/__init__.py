"""Several labels a sample."""

from .task import Multilabel

__all__ = ["Multilabel"]
