"""The plan of a comparison: arms, their common settings, and the seeds and epochs that fit the budget."""

from ...support.moved import find_moved

__getattr__ = find_moved(__name__)
