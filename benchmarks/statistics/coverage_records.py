"""Coverage of intervals of statistics that are no mean, from records of every sample; run by `coverage.py`."""

import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import simulate
from scipy import stats

from saccade.statistics import statistic_difference
from saccade.tasks.multilabel.metrics import mean_average_precision

SEEDS, IMAGES = (3, 5, 10), (200, 1000, 10000)
RECORDS: dict[str, tuple[simulate.Simulated, Callable[[np.ndarray], float]]] = {
    "mIoU of 4 classes": (simulate.confusions, simulate.mean_iou),
    "mAP of 4 labels": (simulate.ranked_labels, mean_average_precision),
}
RECORD_MODELS = {  # standard deviations in logits
    "samples dominate": {"effect": 0.3, "seed_sd": 0.0, "taste_sd": 0.5},
    "seeds and samples": {"effect": 0.3, "seed_sd": 0.3, "taste_sd": 0.5},
}
RECORD_PARTS = 10  # of a line's experiments, each with its own seed, spread over processes


def record_coverage(experiments: int, seed: int) -> None:
    print("\n## Statistics that are no mean, from records of every sample, 95 % interval\n")
    errors = [100 * np.sqrt(0.05 * 0.95 / count) for count in (experiments, experiments // 2)]
    print(
        f"`statistic_difference`, 100 groups left out in turn; {experiments} experiments a line, half as many for mAP:"
    )
    print(f"one standard error of a coverage is {errors[0]:.1f} and {errors[1]:.1f} points. Bias and scatter of the")
    print("difference seen, and half the interval's width, in points. Seeds alone: Student's t over seeds, as of one")
    print("number a training.\n")
    print("| statistic | model | seeds | samples | truth | bias | scatter | half width | **ours** | seeds alone |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |")
    covered = []
    with ProcessPoolExecutor() as pool:
        for (name, made), share in zip(RECORDS.items(), (1, 2), strict=True):
            for how, model in RECORD_MODELS.items():
                truth = simulate.true_difference(*made, **model)
                for S, N in itertools.product(SEEDS, (100, 400)):
                    count = experiments // share // RECORD_PARTS
                    asked = [(name, how, S, N, count, (seed, S, N, part)) for part in range(RECORD_PARTS)]
                    mean, half, alone = np.concatenate(list(pool.map(record_experiments, asked))).T
                    off = np.abs(mean - truth)
                    covered.append(float(np.mean(off <= half)))
                    told = f"{100 * truth:.2f} | {100 * (mean.mean() - truth):+.2f} | {100 * mean.std():.2f}"
                    held = f"**{100 * covered[-1]:.1f}** | {100 * np.mean(off <= alone):.1f}"
                    print(f"| {name} | {how} | {S} | {N} | {told} | {100 * half.mean():.2f} | {held} |", flush=True)
    print(f"\nFrom {100 * min(covered):.1f} to {100 * max(covered):.1f} %, {100 * np.mean(covered):.1f} % on average.")


def record_experiments(asked: tuple[str, str, int, int, int, tuple[int, ...]]) -> np.ndarray:
    """Return the difference seen and half the widths of both intervals, experiments x 3."""
    name, how, seeds, samples, experiments, seed = asked
    (simulated, statistic), rng, rows = RECORDS[name], np.random.default_rng(seed), []
    for _ in range(experiments):
        arms = simulated(seeds, samples, rng=rng, **RECORD_MODELS[how])
        found = statistic_difference(*arms, statistic)
        alone = stats.t.isf(0.025, seeds - 1) * found.per_seed.std(ddof=1) / np.sqrt(seeds)
        rows.append((found.mean, found.high - found.mean, alone))
    return np.array(rows)
