"""Measure models: size, speed, accuracy, calibration and robustness."""
