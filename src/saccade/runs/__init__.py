"""Runs on disk: folder, settings, weights with metadata, states, scores."""

from ..support.moved import find_moved

__getattr__ = find_moved(__name__)
