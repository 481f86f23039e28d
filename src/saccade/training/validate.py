"""Answers on the validation samples, each counted once."""

import torch

from ..data.feed import Expand
from ..data.validation import Validation
from ..tasks import Metrics, Task
from .compilation import uncompiled
from .parallel import World


@torch.no_grad()
def validate(task: Task, validation: Validation, expand: Expand, world: World) -> Metrics:
    """Ask a task about every validation sample and return what was measured, over all processes; all call this."""
    was_training = task.training
    task.eval()
    metrics = task.metrics()
    with uncompiled():
        for batch in validation.batches():
            batch = expand.plain(batch)
            metrics.update(task.answer(batch), batch)
    task.train(was_training)
    metrics.join(world.gather(metrics.state()))
    world.unite(validation.bad)
    return metrics
