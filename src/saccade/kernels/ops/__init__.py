"""Operators: a schema, a reference in plain PyTorch, gradients, and the device code that computes them."""
