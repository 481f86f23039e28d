"""Rules of visual question answering on settings."""

from ..rules import own, refused, without_images

RULES = (
    refused("loss.class_weights", "answers are weighted by their scores"),
    refused("loss.smoothing", "answers are weighted by their scores"),
    own(
        "questions",
        "images are not augmented, and questions are read file by file with them, so steps are not compiled",
        lambda config: without_images(config, compile=False, graphs=False),
    ),
)
