"""Evaluation of classifiers: labels, calibration, per-class accuracy, attacks."""
