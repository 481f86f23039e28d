"""Rules of visual question answering on settings."""

from dataclasses import replace

from ...settings import AugmentConfig, ConfigError, TrainConfig
from ...settings.decisions import put
from ..rules import own, refused, without_images
from .encoding import STEPS

SCALE = [0.5] * 3  # mean and deviation of ViLT's image processor
RAND_AUGMENT = ("ops", "kind", "magnitude", "spread", "prob", "interpolation")  # of RandAugment


def _of_questions(config: TrainConfig) -> TrainConfig:
    """Return settings without what questions and their images do not have."""
    after, given = without_images(config, compile=False, graphs=False), config.augment
    if not given.rand_ops:
        return after
    if given.rand_kind not in STEPS:
        raise ConfigError(
            f"augment.rand_ops = {given.rand_ops} was given with augment.rand_kind = {given.rand_kind!r}, but the task "
            "vqa has ViLT's and timm's operations only; add --set augment.rand_kind=vilt, or set augment.rand_ops=0"
        )
    kept = {f"rand_{name}": getattr(given, f"rand_{name}") for name in RAND_AUGMENT}
    return replace(after, augment=AugmentConfig(crop="none", flip=0.0, off_epochs=given.off_epochs, **kept))


def _normalised(config: TrainConfig) -> TrainConfig:
    return put(config, {} if config.data.mean else {"data.mean": SCALE, "data.std": SCALE})


RULES = (
    own("normalisation", "the normalisation of ViLT's image processor", _normalised),
    refused("loss.class_weights", "answers are weighted by their scores"),
    refused("loss.smoothing", "answers are weighted by their scores"),
    own(
        "questions",
        "the model is one of Hugging Face's; images are augmented by RandAugment alone, and questions are read file by "
        "file with them, so steps are not compiled",
        _of_questions,
    ),
)
