"""What finished runs show: their scores, differences with intervals, and warnings."""

from ...support.moved import find_moved

__getattr__ = find_moved(__name__)
