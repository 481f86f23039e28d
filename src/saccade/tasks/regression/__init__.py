"""Regression."""

from .task import Regress

__all__ = ["Regress"]
