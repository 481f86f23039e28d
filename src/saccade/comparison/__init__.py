"""Matched comparisons of training arms, and what can honestly be concluded from them."""

from .paired import Difference, paired_difference
from .scores import Ratio
from .verdict import Judgement, Verdict

__all__ = ["Difference", "Judgement", "Ratio", "Verdict", "paired_difference"]
