"""How strong augmentation is: of a run's length, and as many times as a recipe has it."""

from typing import Any

from .changes import overlay
from .schema import AugmentConfig, TrainConfig

SHORT_RUN_EPOCHS = 15  # epochs of a run, up to which it is best off without augmentation that grows with them
HIGHEST = {"rand_magnitude": 10.0, "mix_prob": 1.0, "erase": 1.0, "jitter": 1.0}  # that augmentation can be made
SAY_STRENGTH = ("rand_ops", "rand_magnitude", "mixup", "cutmix", "mix_prob", "erase", "jitter")  # settings of `augment`


def scale_augmentation_to_epochs(config: TrainConfig, epochs: int) -> TrainConfig:
    """Return settings whose augmentation suits a run of so many epochs, if they say what is the length for all of it.

    A run that sees its images a few times does not learn them by heart, and what makes them harder costs it accuracy.
    """
    if config.augment.full_epochs is None:
        return config
    strength = share_of_full(config.augment.full_epochs, epochs)
    weaker = strength_settings(config.augment, strength) if strength < 1 else {}
    return overlay(config, {**weaker, "augment.full_epochs": None})


def share_of_full(full: int, epochs: int) -> float:
    """Return how strong augmentation is in a run of so many epochs, of what it is in one of `full`."""
    return min(max(epochs - SHORT_RUN_EPOCHS, 0) / max(full - SHORT_RUN_EPOCHS, 1), 1.0)


def frozen_augmentation(resolved: TrainConfig) -> dict[str, Any]:
    """Return the settings that keep augmentation as strong as it was made, however long another run is."""
    return {f"augment.{name}": getattr(resolved.augment, name) for name in (*SAY_STRENGTH, "full_epochs")}


def strength_settings(augment: AugmentConfig, strength: float) -> dict[str, Any]:
    """Return the settings that make augmentation so many times as strong as a recipe has it; empty if it has none."""
    found: dict[str, Any] = {}
    if augment.rand_ops:
        found["augment.rand_magnitude"] = min(augment.rand_magnitude * strength, HIGHEST["rand_magnitude"])
        found |= {"augment.rand_ops": 0} if strength == 0 else {}
    if augment.mixup or augment.cutmix:
        found["augment.mix_prob"] = min(augment.mix_prob * strength, 1.0)
    for name in ("erase", "jitter"):
        if value := getattr(augment, name):
            found[f"augment.{name}"] = min(value * strength, HIGHEST[name])
    return {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in found.items()}
