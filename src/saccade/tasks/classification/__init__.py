"""Single-label classification."""

from .task import Classify, classification_loss, read_logits

__all__ = ["Classify", "classification_loss", "read_logits"]
