"""Rules of regression on settings."""

from ..rules import left_out, refused

RULES = (
    refused("loss.class_weights", "numbers have no classes"),
    left_out(("mixup", "cutmix"), "numbers are not classes"),
)
