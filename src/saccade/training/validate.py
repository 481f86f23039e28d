"""Validation of a task over all processes."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..data.feed import Batch, Expand
from ..data.image import BadSample
from ..data.source import Source
from ..data.validation import Validation
from ..tasks import Metrics, Task
from ..tasks.metric import PLACE
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


@torch.no_grad()
def predict_shown(
    task: Task, metrics: Metrics, source: Source, answer: Callable[[Batch], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return predictions for pages; the few samples whose images they show are asked again, for what takes memory.

    Those that can no longer be read are blank; pages leave them out.

    Args:
        source: the validation samples.
        answer: the task's answer to a batch as it is read.
    """
    found = metrics.predictions()
    if "shown" not in found:
        return found
    assert metrics.spec is not None
    was_training, encode = task.training, task.codec(metrics.spec).encoder()
    task.eval()
    places = metrics.columns[PLACE][found["shown"]].tolist()
    parts: dict[int, Mapping[str, Tensor]] = {}
    with uncompiled():
        for number, place in enumerate(places):
            try:
                batch = encode.collate([encode(source.sample(place))])
            except BadSample:
                continue
            parts[number] = {name: part.cpu() for name, part in task.for_pages(answer(batch), batch).items()}
    task.train(was_training)
    first = next(iter(parts.values()), {})
    blank = {name: torch.zeros_like(part) for name, part in first.items()}
    rows = [parts.get(number, blank) for number in range(len(places))]
    return found | {name: torch.cat([row[name] for row in rows]) for name in first}
