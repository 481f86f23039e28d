"""What a comparison is to do: its arms, what they have in common, and how many seeds and epochs fit the budget."""

from ...support.moved import find_moved

__getattr__ = find_moved(__name__)
