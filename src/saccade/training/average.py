"""An average of the weights over the steps, which often answers better than the last of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average of a model's parameters; its buffers are taken as they are.

    Args:
        model: whose weights are averaged.
        decay: weight of the past; less in the first steps, lest the beginning stay in the average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        names = {name for name, _ in model.named_parameters()}
        own = [(name, p) for name, p in model.state_dict(keep_vars=True).items() if name in names]
        self.names = [name for name, _ in own]
        self.live = [p.detach() for _, p in own]
        self.averages = [p.detach().clone() for _, p in own]
        self.weight = torch.zeros((), device=self.live[0].device)  # of the newest weights

    def prepare(self, step: int) -> None:
        """Set how much the step that comes counts."""
        self.weight.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights."""
        difference = torch._foreach_sub(self.live, self.averages)
        torch._foreach_mul_(difference, self.weight)
        torch._foreach_add_(self.averages, difference)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by the parameters' names."""
        return dict(zip(self.names, self.averages, strict=True))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages into the model for a while."""
        kept = [p.clone() for p in self.live]
        with torch.no_grad():
            torch._foreach_copy_(self.live, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.live, kept)
