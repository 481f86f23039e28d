"""Models and tasks made from settings or opened from weights."""

from ..support.moved import find_moved

__getattr__ = find_moved(__name__)
