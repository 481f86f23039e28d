"""Class weights over a whole batch, whose parts lie in several processes or are taken one after another."""

import torch
from torch import Tensor, nn

from ..tasks.classify import Classify, classification_loss
from .parallel import World


class Weighing:
    """Makes the losses of a batch's parts add up to that of the whole.

    A loss by class indices is divided by the sum of their weights, so that a part of heavy classes would count as much
    as one of light classes. What other losses a task adds is averaged over pictures and left as it is.

    Args:
        task: whose classification may have weights.
        world: the processes that share a batch.
    """

    def __init__(self, task: nn.Module, world: World) -> None:
        weighted = (m for m in task.modules() if isinstance(m, Classify) and m.class_weights is not None)
        self.classify, self.world = next(weighted, None), world

    def mean(self, targets: Tensor, everyone: int) -> Tensor | None:
        """Return the mean weight of a batch over all processes, which all call this; None where it is not needed.

        Args:
            targets: of this process.
            everyone: pictures of the batch in all processes.
        """
        if self.classify is None or targets.is_floating_point():
            return None
        return self.world.total(self._weights(targets).sum()) / everyone

    def weigh(self, answer: dict[str, Tensor], targets: Tensor, mean: Tensor | None) -> dict[str, Tensor]:
        """Return the answer to a part of a batch, its loss such that the parts' mean by pictures is the batch's loss.

        Args:
            answer: "output" and "loss" of a task.
            targets: of that part.
            mean: weight of the whole batch; None changes nothing.
        """
        if mean is None or self.classify is None:
            return answer
        heavier = self._weights(targets).mean() / mean - 1
        own = classification_loss(
            answer["output"],
            targets,
            label_smoothing=self.classify.label_smoothing,
            class_weights=self.classify.class_weights,
        )
        return answer | {"loss": answer["loss"] + own * heavier}

    def _weights(self, targets: Tensor) -> Tensor:
        assert self.classify is not None
        assert self.classify.class_weights is not None
        with torch.no_grad():
            return self.classify.class_weights[targets]
