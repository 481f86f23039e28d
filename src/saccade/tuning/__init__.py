"""Hyperparameter search on training samples."""
