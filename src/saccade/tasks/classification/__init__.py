"""One class a sample."""

from .task import Classify, classification_loss, read_logits

__all__ = ["Classify", "classification_loss", "read_logits"]
