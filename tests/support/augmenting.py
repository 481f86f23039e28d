"""Augmentation of images with one class each, for tests that look at images and labels alone."""

from saccade.data.augment import Augment
from saccade.data.spec import InputSpec
from saccade.settings import AugmentConfig, LossConfig
from saccade.tasks import Classify


def class_augment(config: AugmentConfig, *, mean, std, num_classes, img_size, smoothing=0.0) -> Augment:
    """Return what a classifier's training batches are made by."""
    spec = InputSpec(tuple(map(str, range(num_classes))), len(mean), img_size, list(mean), list(std))
    return Classify.codec(spec).expander(config, LossConfig(smoothing=smoothing), device="cpu")


class ImagesAndLabels:
    """An augmentation called with images, labels and keys that returns images and targets."""

    def __init__(self, config, **options):
        self.augment = class_augment(config, **options)

    def __call__(self, images, labels, keys, *, strong=True):
        batch = self.augment({"image": images, "target": labels, "key": keys}, strong=strong)
        return batch["image"], batch["target"]
