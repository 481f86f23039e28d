"""Backbones, one family a file; importing this package registers them with timm."""
