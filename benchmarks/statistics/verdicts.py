"""What verdicts are worth where trainings fail, where a metric has no value per sample, and where one looks often.

python benchmarks/statistics/verdicts.py  # a few minutes on one core; the last part of coverage.py
"""

import argparse
from collections import Counter
from typing import Any

import numpy as np
import simulate
from scipy import special

from saccade.comparison.conclude.diverged import find_diverged
from saccade.statistics import (
    Stability,
    alpha_share,
    judge,
    paired_difference,
    paired_scores,
    statistic_difference,
    weigh,
)
from saccade.statistics.spread import mean_squares, paired_spread
from saccade.tasks.classification.metrics import calibration_error
from saccade.tasks.metric import MetricSpec

ACCURACY = MetricSpec("accuracy", "accuracy", share=True, chance=0.1)
ANSWERS = {"accuracy": 0.75, "effect": 0.283, "seed_sd": 0.05, "taste_sd": 0.5}  # 3.2 points better
CALIBRATION = {
    "same recipe, samples dominate": {"effect": 0.0, "seed_sd": 0.0, "taste_sd": 0.5},
    "same recipe, seeds and samples": {"effect": 0.0, "seed_sd": 0.3, "taste_sd": 0.5},
    "overconfident, seeds and samples": {"effect": 0.5, "seed_sd": 0.3, "taste_sd": 0.5},
}
LOOKS = {  # standard deviations of training, sample and rest
    "seeds only": (0.05, 0.0, 0.0),
    "seeds dominate": (0.05, 0.1, 0.2),
    "all three": (0.01, 0.2, 0.3),
    "samples only": (0.0, 0.3, 0.0),
}
PLANS = {"after every seed, 2 to 20": range(2, 21), "3, then 6, then 12": (3, 6, 12), "5, then 10": (5, 10), "5": (5,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    everything(options.experiments, options.seed)


def everything(experiments: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    failures(experiments, rng)
    single_numbers(experiments, rng)
    calibration(experiments // 5, rng)
    looks(2 * experiments, rng)


def failures(experiments: int, rng: np.random.Generator) -> None:
    print("\n## Trainings that fail or diverge are outcomes\n")
    print("An arm is 3.2 points better where its training succeeds, and a share of its trainings fails (no result) or")
    print("diverges (answers by chance, 10 %). Percent of experiments that call it so, with 1000 images; before: the")
    print(
        "verdict over finished trainings, failures left out. What never failed in an experiment cannot be seen in it.\n"
    )
    print(
        "| what goes wrong | truth | seeds | seen to | before: helps | **now: helps** | now: unstable | cannot tell |"
    )
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for what, share in (("fails", 0.0), ("fails", 0.2), ("fails", 0.05), ("diverges", 0.087), ("diverges", 0.2)):
        for seeds in (3, 5, 10):
            before, now, seen = Counter[str](), Counter[str](), 0
            for _ in range(experiments):
                a, b, truth = simulate.right_or_wrong(1, (seeds, seeds), 1000, rng=rng, **ANSWERS)
                bad = rng.random(seeds) < share
                seen += int(bad.any())
                b = np.where(bad[:, None], rng.random((seeds, 1000)) < 0.1, b[0]) if what == "diverges" else b[0]
                kept = np.ones(seeds, bool) if what == "diverges" else ~bad
                if kept.sum() < 2:
                    before["cannot tell"] += 1
                    now["cannot tell"] += 1
                    continue
                verdicts = judged(a[0], b, kept)
                before[verdicts[0]] += 1
                now[verdicts[1]] += 1
            lost = share * ((0.75 + truth) - 0.1)
            cells = [seen, before["helps"], now["helps"], now["unstable"], now["cannot tell"]]
            told = " | ".join(f"{100 * x / experiments:.1f}" for x in cells)
            print(f"| {100 * share:g} % {what} | {100 * (truth - lost):+.1f} | {seeds} | {told} |", flush=True)


def judged(a: np.ndarray, b: np.ndarray, kept: np.ndarray) -> tuple[str, str]:
    """Return the kind of verdict over finished trainings, and that which counts the others."""
    first, second = a[kept], b[kept]
    found = paired_difference(first, second)
    scores = {seed: float(row.mean()) for seed, row in enumerate(second)}
    usual = float(np.median([*first.mean(1), *second.mean(1)]))
    diverged = find_diverged(scores, {}, usual=usual, metric=ACCURACY, samples=a.shape[1])
    before = "helps" if found.p_value < 0.05 and found.mean > 0 else "other"
    if found.p_value >= 0.05 * alpha_share(1):  # nothing else can follow, and how many seeds to add takes long to find
        return before, "unstable" if diverged else "cannot tell"
    arm = Stability.count(int(kept.sum()), int((~kept).sum()), diverged)
    worth = (max(float(second.mean()) - 0.1, 0.0), max(float(first.mean()) - 0.1, 0.0))
    now = weigh(judge({"arm": found}, look=1)["arm"], arm, Stability.count(len(kept), 0), worth=worth)
    return before, now.verdict.kind


def single_numbers(experiments: int, rng: np.random.Generator) -> None:
    print("\n## One number a training, against a value per sample: false alarms, 5 % promised\n")
    print("A recipe against an equally good one that is good at other images; 1000 images. The interval over seeds")
    print("alone speaks about these very images, which its verdict now says; top-5 and the other numbers of a run are")
    print("compared over seeds and samples where their records are kept.\n")
    print("| model | seeds | over seeds alone | **over seeds and samples** |")
    print("| --- | --: | --: | --: |")
    for name, taste in (("images matter little", 0.2), ("images matter", 0.5), ("images dominate", 1.5)):
        for seeds in (3, 5, 10):
            model = {"accuracy": 0.75, "effect": 0.0, "seed_sd": 0.05, "taste_sd": taste}
            a, b, _ = simulate.right_or_wrong(experiments, (seeds, seeds), 1000, rng=rng, **model)
            alone = [paired_scores(x.mean(1), y.mean(1)).p_value < 0.05 for x, y in zip(a, b, strict=True)]
            ms = mean_squares(b.astype(np.float64) - a)
            ours = np.abs(ms.mean) > paired_spread(ms, seeds=seeds, samples=1000).half_width()
            print(f"| {name} | {seeds} | {100 * np.mean(alone):.1f} | **{100 * ours.mean():.1f}** |", flush=True)


def confidences(
    seeds: int,
    samples: int,
    *,
    effect: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
    quality: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate confidences and right answers, S, N, 2, of two arms on the same samples, the second surer."""
    difficulty = 1.5 + 1.5 * rng.standard_normal(samples)
    found = []
    for sure in (1.3, 1.3 + effect):
        drawn = seed_sd * rng.standard_normal(seeds) if quality is None else quality
        logits = difficulty + taste_sd * rng.standard_normal(samples) + 0.3 * rng.standard_normal((seeds, samples))
        right = rng.random((seeds, samples)) < special.expit(logits)
        confidence = np.maximum(special.expit((sure + drawn[:, None]) * logits), 0.1)
        found.append(np.stack([confidence, right], -1))
    return found[0], found[1]


def calibration(experiments: int, rng: np.random.Generator) -> None:
    print("\n## Expected calibration error, from records of every sample, 95 % interval\n")
    print(f"`statistic_difference` of confidence and right answers in 15 bins; {experiments} experiments a line, one")
    print(f"standard error {100 * np.sqrt(0.05 * 0.95 / experiments):.1f} points. Bias of the difference in points.\n")
    print("| model | seeds | samples | truth | bias | **ours** | seeds alone |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name, model in CALIBRATION.items():
        truth = simulate.true_difference(confidences, calibration_error, rounds=5, **model)
        for seeds, samples in ((3, 400), (3, 2000), (5, 400), (5, 2000)):
            held, off = [], []
            for _ in range(experiments):
                arms = confidences(seeds, samples, rng=rng, **model)
                d = statistic_difference(*arms, calibration_error, share=True)
                alone = paired_scores(*([calibration_error(x) for x in arm] for arm in arms))
                off.append(d.mean - truth)
                held.append([x.low <= truth <= x.high for x in (d, alone)])
            ours, seeds_alone = 100 * np.mean(held, axis=0)
            bias = 100 * np.mean(off)
            told = f"{100 * truth:.2f} | {bias:+.2f} | **{ours:.1f}** | {seeds_alone:.1f}"
            print(f"| {name} | {seeds} | {samples} | {told} |", flush=True)


def looks(experiments: int, rng: np.random.Generator) -> None:
    print("\n## Looking again and stopping when it is significant: 95 % interval, no true difference\n")
    print(
        "Seeds are added until zero is outside, or the plan's end. Percent of experiments with an alarm, and whose last"
    )
    print(f"interval holds the truth; {experiments} experiments a line, 200 images. Uncorrected: every look at 95 %.\n")
    print(
        "| looks | model | uncorrected: alarms | **alarms** | **last interval holds the truth** | half width, times |"
    )
    print("| --- | --- | --: | --: | --: | --: |")
    for plan, counts in PLANS.items():
        for name, sds in LOOKS.items():
            told = sequential(experiments, tuple(counts), sds, rng)
            cells = f"{told[0]:.1f} | **{told[1]:.1f}** | **{told[2]:.1f}** | {told[3]:.2f}"
            print(f"| {plan} | {name} | {cells} |", flush=True)


def sequential(experiments: int, counts: tuple[int, ...], sds: Any, rng: np.random.Generator) -> tuple[float, ...]:
    """Return alarms without and with correction, coverage with it, and how much wider the last look's interval is."""
    naive, ours, held, wider = [], [], [], []
    for start in range(0, experiments, 500):
        size = min(500, experiments - start)
        seed_sd, sample_sd, rest_sd = sds
        model = {"mean": 0.0, "seed_sd": seed_sd, "sample_sd": sample_sd, "rest_sd": rest_sd}
        d = simulate.normal_differences(size, max(counts), 200, rng=rng, **model)
        alarm, stopped, covered = (np.zeros(size, bool) for _ in range(3))
        for look, count in enumerate(counts, 1):
            ms = mean_squares(d[:, :count])
            spread = paired_spread(ms, seeds=count, samples=200)
            plain, half = spread.half_width(0.95), spread.half_width(1 - 0.05 * alpha_share(look))
            away = np.abs(ms.mean) - 1e-12
            alarm |= away > plain
            covered = np.where(stopped, covered, away <= half)
            stopped |= away > half
        naive.append(alarm)
        ours.append(stopped)
        held.append(covered)
        wider.append(half / plain)
    rates = [float(100 * np.mean(np.concatenate(x))) for x in (naive, ours, held)]
    return (*rates, float(np.median(np.concatenate(wider))))


if __name__ == "__main__":
    main()
