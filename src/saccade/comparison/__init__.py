"""Matched comparisons of training arms, and what can honestly be concluded from them."""

from .decision import Verdict
from .paired import Difference, paired_difference
from .scores import Ratio
from .verdict import Judgement

__all__ = ["Difference", "Judgement", "Ratio", "Verdict", "paired_difference"]
