"""Replacements for modules: same parameters, same `forward`."""
