"""What a model is trained for: forward and loss in one module."""

from .classify import Classify
from .drloc import RelativeLocalization
from .task import Task

__all__ = ["Classify", "RelativeLocalization", "Task"]
