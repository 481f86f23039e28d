"""What models reach in their task's primary metric on the same pictures, and what of it an exported one loses."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..data.spec import InputSpec
from ..tasks import MetricSpec
from ..tasks.metric import PLACE
from ..tasks.opening import find_task
from .verify import Evidence, Raw

AT_ONCE = 32  # pictures asked together


@dataclass(frozen=True)
class Score:
    """What a model reached.

    Args:
        metric: in which.
        value: on all pictures.
        each: of every picture, N, where the value is their mean; else None.
    """

    metric: MetricSpec
    value: float
    each: np.ndarray | None


@dataclass(frozen=True)
class Loss:
    """What is lost in a metric: positive is worse; with its 95% interval over pictures where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def primary_metric(spec: InputSpec) -> MetricSpec:
    """Return the metric that the task of a model is judged by."""
    kind = find_task(spec.task)
    metric = kind.metric(kind.primary, spec)
    if metric is None:
        raise ValueError(f"the task {kind.name} is judged by {kind.primary!r}, which is none of its metrics")
    return metric


def measure(raw: Raw, evidence: Evidence, spec: InputSpec) -> Score | None:
    """Return what raw answers reach; None where the pictures' targets are not known, or the result is no number.

    Args:
        raw: gives raw answers to pictures.
        evidence: the pictures and their targets.
        spec: of the model, whose task reads the answers.
    """
    if evidence.targets is None:
        return None
    metric, task = primary_metric(spec), find_task(spec.task).build(nn.Identity(), spec)
    metrics = task.metrics()
    for places in torch.arange(len(evidence.pictures)).split(AT_ONCE):
        output = torch.from_numpy(raw(evidence.pictures[places]))
        batch = {name: part[places] for name, part in evidence.targets.items()} | {PLACE: places}
        metrics.update(task.read(output, batch), batch)
    value = metrics.compute()[metric.name]
    each = None
    if metric.statistic is None and not metric.by_group:
        each = metrics.scores()[metric.column].numpy()
    return Score(metric, value, each) if math.isfinite(value) else None


def lost(eager: Score, exported: Score) -> Loss:
    """Return what the exported model loses against the eager one on the same pictures."""
    better, worse = (eager, exported) if eager.metric.larger_is_better else (exported, eager)
    if better.each is None or worse.each is None:
        return Loss(better.value - worse.value)
    if all(one.each is not None and one.each.dtype.kind in "bu" and one.each.max() <= 1 for one in (better, worse)):
        return paired_loss(better.each.astype(bool), worse.each.astype(bool))
    return _paired_mean(better.each.astype(np.float64) - worse.each.astype(np.float64))


def paired_loss(eager: np.ndarray, exported: np.ndarray) -> Loss:
    """Return the share lost on the same pictures, N bool each, with the interval of Bonett and Price (2012).

    It stays honest where both answer alike: no difference in 500 pictures is not a difference of nothing.
    """
    count = len(eager)
    lost, won = int((eager & ~exported).sum()), int((~eager & exported).sum())
    worse, better = (lost + 1) / (count + 2), (won + 1) / (count + 2)
    middle = worse - better
    half = 1.959964 * math.sqrt((worse + better - middle**2) / (count + 2))
    return Loss((lost - won) / count, max(-1.0, middle - half), min(1.0, middle + half))


def _paired_mean(differences: np.ndarray) -> Loss:
    """Return the mean of differences, N, with Student's interval."""
    from scipy.stats import t  # scipy takes a moment to import

    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Loss(mean)
    half = float(t.ppf(0.975, count - 1) * differences.std(ddof=1) / math.sqrt(count))
    return Loss(mean, mean - half, mean + half)
