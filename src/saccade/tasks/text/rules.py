"""Settings that text classification decides."""

from ..rules import own, refused
from .hosts import adapt_host

RULES = (
    refused(
        "repeats",
        lambda config: config.augment.repeats != 1,
        "augment.repeats was given; texts are not augmented: leave it out",
    ),
    own(
        "texts",
        "texts are not augmented, their models are Hugging Face's, and every length would be compiled anew",
        lambda config: adapt_host(config, compile=bool(config.engine.compile)),
    ),
)
