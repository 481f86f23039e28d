"""Inference with trained models: prediction, export, serving."""
