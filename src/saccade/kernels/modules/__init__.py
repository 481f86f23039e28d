"""Replacement modules, a file for each idea that they speed up."""
