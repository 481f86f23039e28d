"""RandAugment of ViLT's code: fourteen operations, without inversion, in ranges of its own."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...data.draws import uniform
from ...data.geometry import PURPOSES, change
from ...data.rand_augment import NONE, NUMBER, PER_STEP, Step, look_up
from ...settings import AugmentConfig

FARTHEST = 100 / 480  # translation in shorter sides: its 100 pixels in VQAv2's usual images of 640 x 480


@dataclass(frozen=True)
class ViltStep(Step):
    """One operation for each image of a batch."""

    @classmethod
    def draw(cls, keys: Tensor, number: int, config: AugmentConfig) -> "ViltStep":
        """Draw the `number`-th operation of images with the given keys, B."""
        plain = Step.draw(keys, number, config)
        used = torch.tensor([place for name, place in NUMBER.items() if name != "Invert"], device=keys.device)
        chosen = used[(uniform(keys, PURPOSES + PER_STEP * number) * len(used)).long()]
        return cls(torch.where(plain.operation == NONE, NONE, chosen), plain.level, plain.sign, plain.cubic)

    @property
    def factor(self) -> Tensor:
        """Factor of contrast, brightness, colour and sharpness, B: from 0.1 to 1.9, of one direction."""
        return 0.1 + 1.8 * self.level

    @staticmethod
    def farthest(aspect: float) -> tuple[float, float]:
        """Return the largest translations, right and down, in coordinates from -1 to 1."""
        return 2 * FARTHEST * min(aspect, 1.0), 2 * FARTHEST * min(1 / aspect, 1.0)

    def __call__(self, images: Tensor, fill: Tensor) -> Tensor:
        """Apply the operations to images, float byte values B, C, H, W, padded with `fill`, C, 1, 1."""
        own = self._among("Posterize", "SolarizeAdd")
        images = change(images, own, _tabulate, self.operation, self.level)
        return Step.__call__(replace(self, operation=torch.where(own, NONE, self.operation)), images, fill)


def _tabulate(images: Tensor, operation: Tensor, level: Tensor) -> Tensor:
    """Posterize to 0 to 4 bits, at least one; solarize from 0 to 256; add up to 110, then solarize from 128."""
    operation, level = (each[:, None, None] for each in (operation, level))  # B, 1, 1
    value = torch.arange(256, device=images.device)
    step = torch.pow(2, 8 - (4 * level).long().clamp(min=1))
    added = (value + 110 * level).clamp(max=255).long()
    table = torch.where(
        operation == NUMBER["Posterize"],
        value // step * step,
        torch.where(
            operation == NUMBER["Solarize"],
            torch.where(value < 256 * level, value, 255 - value),
            torch.where(added < 128, added, 255 - added),
        ),
    )
    return look_up(table.expand(len(images), images.shape[1], -1), images)
