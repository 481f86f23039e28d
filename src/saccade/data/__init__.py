"""Datasets: readers, sampling order, augmentation and batches."""
