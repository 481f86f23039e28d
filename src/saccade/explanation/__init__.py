"""Explain models: nominations, slots, attention, layer similarity, Grad-CAM, word influence."""
