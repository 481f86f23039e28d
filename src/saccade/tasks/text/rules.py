"""Rules of text classification on settings."""

from ..rules import own, refused, without_images

RULES = (
    refused("augment.repeats", "texts are not augmented"),
    own(
        "texts",
        "texts are not augmented, their models are from Hugging Face, and every length would be compiled separately",
        lambda config: without_images(config, compile=bool(config.engine.compile)),
    ),
)
