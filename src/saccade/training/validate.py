"""Validation of a task over all processes."""

import torch

from ..data.feed import Expand
from ..data.validation import Validation
from ..tasks import Metrics, Task
from .engine import uncompiled
from .parallel import World


@torch.no_grad()
def validate(task: Task, validation: Validation, expand: Expand, world: World) -> Metrics:
    """Evaluate a task on all validation samples over all processes, which all call this."""
    was_training = task.training
    task.eval()
    metrics = task.metrics(task.spec)
    with uncompiled():
        for batch in validation.batches():
            batch = expand.plain(batch)
            metrics.update(task.answer(batch), batch)
    task.train(was_training)
    if world.size > 1:
        metrics.join(world.gather(metrics.state()))
    world.merge_from_ranks(validation.bad)
    return metrics
