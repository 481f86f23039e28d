"""Evaluate models: size, speed, accuracy, calibration and robustness."""
