"""Measure models: size, speed, and later accuracy and robustness."""
