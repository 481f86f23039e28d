"""Matched comparisons of training arms, and what can honestly be concluded from them."""

from .difference import Difference, Judgement, Verdict, judge, plan_detectable
from .paired import Ratio, paired_difference

__all__ = ["Difference", "Judgement", "Ratio", "Verdict", "judge", "paired_difference", "plan_detectable"]
