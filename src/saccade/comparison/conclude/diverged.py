"""Find diverged trainings: near chance while others learn, or with an increased loss."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...tasks.metric import MetricSpec

LEARNED = 0.1  # least improvement over chance, relative to the usual one


def find_diverged(
    scores: Mapping[int, float],
    losses: Mapping[int, Sequence[float]],
    *,
    usual: float | None,
    metric: MetricSpec | None,
    samples: int,
) -> tuple[int, ...]:
    """Return the seeds of an arm whose training diverged.

    Args:
        usual: typical score of all arms' trainings.
        metric: the primary metric; if its chance level is unknown, an increased loss counts as divergence.
    """
    found = {seed for seed, row in losses.items() if len(row) > 1 and row[0] > 0 and not row[-1] < 2 * row[0]}
    if metric is not None and metric.chance is not None and usual is not None:
        noise = 2 * np.sqrt(metric.chance * (1 - metric.chance) / max(samples, 1)) if metric.share else 0.0
        learned = abs(usual - metric.chance)
        sign = 1 if metric.larger_is_better else -1
        if learned > 4 * noise:  # otherwise no arm has learned
            least = LEARNED * learned + noise
            found |= {seed for seed, score in scores.items() if not sign * (score - metric.chance) > least}
    return tuple(sorted(found))
