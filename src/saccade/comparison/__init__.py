"""Matched comparisons of training arms, and what can honestly be concluded from them."""

from ..statistics import Difference, Judgement, Ratio, Verdict, judge, paired_difference, plan_detectable

__all__ = ["Difference", "Judgement", "Ratio", "Verdict", "judge", "paired_difference", "plan_detectable"]
