"""Find the settings that fit a model and a set, on training samples alone."""
