"""What every task offers the training loop."""

from typing import Any

import torch
from torch import Tensor, nn


class Task(nn.Module):
    """A model together with what it is trained for.

    Calling it returns a dict with "output" (what the model answered), "loss" (a scalar to call `backward` on, if there
    is anything to compare with) and the loss's named parts, without gradient, for the log.
    """

    model: nn.Module

    def forward(
        self,
        images: Tensor,
        targets: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        **step: Any,
    ) -> dict[str, Tensor]:
        """Run the model and compare.

        Args:
            images: B, C, H, W.
            targets: what the answer is compared with; None to only answer.
            generator: source of the task's own randomness, on the device of the images.
            step: what `draw` returned, instead of a generator.
        """
        raise NotImplementedError

    def draw(
        self,
        batch_size: int,  # noqa: ARG002
        *,
        device: torch.device | str,  # noqa: ARG002
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Draw what one step of the task needs, to be passed to it by name.

        For a compiled task: `task(images, targets, **task.draw(len(images), device=..., generator=...))`, since
        torch.compile takes no generator.
        """
        return {}

    def set_epoch(self, epoch: float, total_epochs: int) -> None:
        """Tell the task how far training is; for those whose loss changes with it."""
