"""Reproducible training: the settings determine the result, also after resuming."""
