"""Operators, one a file, each with a REFERENCE of the same signature in plain PyTorch."""
