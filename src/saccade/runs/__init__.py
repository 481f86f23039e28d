"""What a run is on disk: its folder, settings, weights and what they say of their model, states, and scores."""

from ..support.moved import find_moved

__getattr__ = find_moved(__name__)
