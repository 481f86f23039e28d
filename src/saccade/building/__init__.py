"""Build models and tasks from settings, and open them from weights."""

from ..support.moved import find_moved

__getattr__ = find_moved(__name__)
