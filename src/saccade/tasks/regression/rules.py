"""Settings that regression decides."""

from ..rules import left_out, refused

RULES = (
    refused(
        "class-weights",
        lambda config: config.loss.class_weights != "none",
        "loss.class_weights was given; numbers have no classes: leave it out",
    ),
    left_out(("mixup", "cutmix"), "numbers are no classes"),
)
