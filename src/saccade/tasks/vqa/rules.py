"""Rules of visual question answering on settings."""

from ..rules import own, refused, without_images

RULES = (
    refused("loss.class_weights", "answers are weighed by their own shares"),
    refused("loss.smoothing", "answers are weighed by their own shares"),
    own(
        "questions",
        "images are left whole, and questions are read with them file by file, so steps are not compiled",
        lambda config: without_images(config, compile=False, graphs=False),
    ),
)
