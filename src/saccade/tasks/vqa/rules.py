"""Settings that visual question answering decides."""

from ..rules import own, refused
from ..text.hosts import adapt_host

RULES = (
    refused(
        "answer-shares",
        lambda config: config.loss.class_weights != "none" or bool(config.loss.smoothing),
        "loss.class_weights or loss.smoothing was given; answers are weighed by their own shares",
    ),
    own(
        "questions",
        "images are left whole, and questions are read with them file by file, so steps are not compiled",
        lambda config: adapt_host(config, compile=False, graphs=False),
    ),
)
