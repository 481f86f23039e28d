"""How often the intervals of `saccade.comparison` hold the true difference, in simulated experiments.

    python benchmarks/statistics/coverage.py > benchmarks/statistics/results/coverage.md  # 20 min on two cores
    python benchmarks/statistics/coverage.py --records-only  # its part on statistics that are no mean
    python benchmarks/statistics/coverage.py --verdicts-only  # its part on failures, single numbers and looks

An experiment draws new trainings and new images. 95 % is promised, and no more false alarms than 5 % at any number of
arms; 93 to 97 is what the tables are checked for.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import simulate
import verdicts
from coverage_records import IMAGES, SEEDS, record_coverage
from scipy import optimize, special, stats

from saccade.statistics import paired_difference
from saccade.statistics.spread import MeanSquares, Spread, mean_squares, paired_spread, unpaired_spread

BINARY = {  # accuracy, effect and standard deviations in logits
    "same recipe, seeds alike": {"accuracy": 0.75, "effect": 0.0, "seed_sd": 0.0, "taste_sd": 0.0},
    "same recipe, seeds vary": {"accuracy": 0.75, "effect": 0.0, "seed_sd": 0.1, "taste_sd": 0.0},
    "small effect": {"accuracy": 0.9, "effect": 0.3, "seed_sd": 0.1, "taste_sd": 0.5},
    "images dominate": {"accuracy": 0.75, "effect": 0.3, "seed_sd": 0.0, "taste_sd": 1.5},
    "seeds and images": {"accuracy": 0.75, "effect": 0.3, "seed_sd": 0.1, "taste_sd": 1.0},
    "seeds dominate": {"accuracy": 0.75, "effect": 1.0, "seed_sd": 0.5, "taste_sd": 0.5},
    "97 % right": {"accuracy": 0.97, "effect": 0.5, "seed_sd": 0.05, "taste_sd": 1.0},
}
ARMS, LEVELS = (1, 5, 10, 20), (0.05, 0.01, 0.0025, 0.0005)
NORMAL = {  # standard deviations of training, image and rest; 0.3 is 9 % of answers differing
    "rest only": (0.0, 0.0, 0.3),
    "images only": (0.0, 0.3, 0.0),
    "images, no seeds": (0.0, 0.3, 0.3),
    "few of seeds": (0.002, 0.2, 0.3),
    "all three": (0.01, 0.2, 0.3),
    "seeds dominate": (0.05, 0.1, 0.2),
    "seeds only": (0.05, 0.0, 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=2000, help="of right or wrong answers, for each line")
    parser.add_argument("--records", type=int, default=400, help="experiments of statistics that are no mean")
    parser.add_argument("--records-only", action="store_true", help="print that part alone")
    parser.add_argument("--verdicts", type=int, default=1000, help="experiments of failures, single numbers and looks")
    parser.add_argument("--verdicts-only", action="store_true", help="print that part alone")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.verdicts_only:
        verdicts.everything(options.verdicts, options.seed)
        return
    if options.records_only:
        record_coverage(options.records, options.seed)
        return
    rng = np.random.default_rng(options.seed)
    print("# Coverage of the intervals, simulated\n")
    print(f"`python benchmarks/statistics/coverage.py --experiments {options.experiments} --seed {options.seed}`\n")
    worst = binary_coverage(options.experiments, rng), normal_coverage(rng)
    small_levels(rng)
    families(2 * options.experiments, rng)
    power(options.experiments, rng)
    unpaired(options.experiments, rng)
    record_coverage(options.records, options.seed)
    print("\n## Range over both grids\n")
    for name, column in zip(("right or wrong", "normal"), worst, strict=True):
        print(f"- {name}: {100 * min(column):.1f} to {100 * max(column):.1f} %")
    verdicts.everything(options.verdicts, options.seed)


def binary_coverage(experiments: int, rng: np.random.Generator) -> list[float]:
    print("## Right or wrong answers (logit-normal trainings and images), 95 % interval\n")
    print(
        f"{experiments} experiments a line, {experiments // 4} for the bootstrap (400 resamples); one standard error of"
    )
    print("a coverage is 0.5 points, of the bootstrap's 1.0.\n")
    print("| model | seeds | images | true difference | seed share | **ours** | Satterthwaite | two-level bootstrap |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    column = []
    for name, model in BINARY.items():
        for S in SEEDS:
            for P in IMAGES:
                ours, peer, boot, share, truth = [], [], [], [], 0.0
                weights = resampling(S, P, rng)
                for a, b, truth in batches(experiments, (S, S), P, model, rng):
                    d = b.astype(np.float64) - a
                    ms = mean_squares(d)
                    spread = paired_spread(ms, seeds=S, samples=P)
                    off = np.abs(ms.mean - truth)
                    ours.append(off <= spread.half_width())
                    peer.append(off <= satterthwaite(spread))
                    share.append(spread.seed / np.maximum(spread.variance, 1e-300))
                    boot.append(bootstrap_holds(d[: max(len(d) // 4, 1)], truth, weights))
                column.append(rate(ours))
                print(
                    f"| {name} | {S} | {P} | {100 * truth:.2f} | {rate(share):.2f} | **{100 * rate(ours):.1f}** | "
                    f"{100 * rate(peer):.1f} | {100 * rate(boot):.1f} |",
                    flush=True,
                )
    return column


def normal_coverage(rng: np.random.Generator, experiments: int = 20_000) -> list[float]:
    print("\n## Normal trainings, images and rest, 95 % interval\n")
    print(
        f"{experiments} experiments a line, mean squares drawn from their exact distributions (standard error 0.15).\n"
    )
    print("| model | seeds | " + " | ".join(f"{P} images: ours | Satterthwaite" for P in IMAGES) + " |")
    print("| --- | --: |" + " --: |" * 6)
    column = []
    for name, sds in NORMAL.items():
        for S in (2, *SEEDS):
            cells = []
            for P in IMAGES:
                ms = draw(experiments, S, P, sds, 0.0, rng)
                spread = paired_spread(ms, seeds=S, samples=P)
                ours, peer = (np.abs(ms.mean) <= half for half in (spread.half_width(), satterthwaite(spread)))
                cells += [f"**{100 * ours.mean():.1f}**", f"{100 * peer.mean():.1f}"]
                if S in SEEDS:
                    column.append(float(ours.mean()))
            print(f"| {name} | {S} | " + " | ".join(cells) + " |")
    return column


def small_levels(rng: np.random.Generator, experiments: int = 20_000) -> None:
    print("\n## False alarms of one arm at small levels, percent: ours, and Satterthwaite's in brackets\n")
    print(
        "Normal trainings and images, 200 images; the chance of an alarm averaged over "
        f"{experiments} drawn mean squares.\n"
    )
    print("| seeds | of the variance trainings cause | " + " | ".join(f"{100 * x:g} %" for x in LEVELS) + " |")
    print("| --: | --: |" + " --: |" * len(LEVELS))
    P = 200
    for S in (2, *SEEDS):
        for share in (0.0, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0):
            ms = draw(experiments, S, P, (np.sqrt(share * S), np.sqrt((1 - share) * P), 0.0), 0.0, rng)
            spread = paired_spread(ms, seeds=S, samples=P)  # the true variance of the mean is 1
            cells = []
            for alpha in LEVELS:
                halves = spread.half_width(1 - alpha), satterthwaite(spread, alpha)
                ours, peer = (100 * np.mean(2 * special.ndtr(-half)) for half in halves)
                cells.append(f"**{ours:.3g}** ({peer:.3g})")
            print(f"| {S} | {100 * share:.0f} % | " + " | ".join(cells) + " |", flush=True)


def families(experiments: int, rng: np.random.Generator) -> None:
    print("\n## Any false alarm among useless arms that share one baseline, 5 % promised, percent\n")
    print(
        "Where no arm differs, Holm raises an alarm exactly when one arm's p-value is below 5 % / arms. "
        f"{experiments} experiments\na line; one standard error is {100 * np.sqrt(0.05 * 0.95 / experiments):.2f}.\n"
    )
    print("| scores | images | seeds | " + " | ".join(f"{m} arm{'s' if m > 1 else ''}" for m in ARMS) + " |")
    print("| --- | --: | --: |" + " --: |" * len(ARMS))
    normal = [(f"normal, {100 * x:.0f} % by trainings", 60, {"share": x}) for x in (0.0, 0.5, 0.9, 0.95)]
    answers = [
        ("seeds alike", 1000, {"accuracy": 0.75, "seed_sd": 0.0, "taste_sd": 0.0}),
        ("images dominate", 200, {"accuracy": 0.75, "seed_sd": 0.0, "taste_sd": 1.5}),
        ("seeds and images", 1000, {"accuracy": 0.75, "seed_sd": 0.1, "taste_sd": 1.0}),
        ("seeds dominate", 200, {"accuracy": 0.75, "seed_sd": 0.5, "taste_sd": 0.5}),
        ("97 % right", 50, {"accuracy": 0.97, "seed_sd": 0.05, "taste_sd": 1.0}),
        ("97 % right", 200, {"accuracy": 0.97, "seed_sd": 0.05, "taste_sd": 1.0}),
    ]
    for name, P, model in (*normal, *answers):
        simulated = simulate.useless_normal_arms if "share" in model else simulate.useless_arms
        for S in (2, *SEEDS):
            size = max(4_000_000 // (max(ARMS) * S * P), 1)
            alarms = []
            for start in range(0, experiments, size):
                d = simulated(min(size, experiments - start), max(ARMS), S, P, rng=rng, **model)
                alarms.append(any_alarm(d.astype(np.float64)))
            cells = " | ".join(f"{100 * x:.1f}" for x in np.concatenate(alarms).mean(0))
            print(f"| {name} | {P} | {S} | {cells} |", flush=True)


def any_alarm(differences: np.ndarray) -> np.ndarray:
    """Whether any of the first arms is called different, experiments x numbers of arms."""
    ms = mean_squares(differences)
    spread = paired_spread(ms, seeds=differences.shape[-2], samples=differences.shape[-1])
    away = np.abs(ms.mean) - 1e-12  # rounding is no alarm
    return np.stack([(away > spread.half_width(1 - 0.05 / m))[:, :m].any(1) for m in ARMS], 1)


def power(experiments: int, rng: np.random.Generator) -> None:
    print("\n## Power at the detectable difference, 80 % promised\n")
    print(
        "Differences in points. Planned: from the true spread. Reported: the mean `.detectable` of 500 experiments.\n"
    )
    print("| model | seeds | images | planned | power there | reported | power there |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name in ("rest only", "images, no seeds", "all three", "seeds dominate"):
        sds = NORMAL[name]
        for S in SEEDS:
            P = 1000
            planned = true_spread(S, P, sds).detectable()
            ms = draw(500, S, P, sds, 0.0, rng)
            spread = paired_spread(ms, seeds=S, samples=P)
            reported = np.mean([one(spread, i).estimated_detectable() for i in range(500)])
            found = [found_share(draw(20_000, S, P, sds, x, rng), S, P) for x in (planned, reported)]
            print_power(f"normal, {name}", (S, P), (planned, reported), found)
    for name in ("same recipe, seeds vary", "images dominate", "seeds and images"):
        for S in SEEDS:
            binary_power(name, S, 1000, experiments, rng)


def binary_power(name: str, seeds: int, samples: int, experiments: int, rng: np.random.Generator) -> None:
    model: dict[str, float] = {**BINARY[name], "effect": 0.0}
    both, planned, reported = (seeds, seeds), 0.0, 0.0
    for _ in range(3):  # the spread depends on the effect a little, so that both are found in turn
        pilot = [mean_squares(b.astype(np.float64) - a) for a, b, _ in batches(experiments, both, samples, model, rng)]
        mean = {k: float(np.mean(np.concatenate([getattr(x, k) for x in pilot]))) for k in vars(pilot[0])}
        spread = paired_spread(MeanSquares(**mean), seeds=seeds, samples=samples)
        planned = spread.detectable()
        model["effect"] = effect_of(planned, model)
    a, b, _ = simulate.right_or_wrong(500, both, samples, rng=rng, **model)
    reported = float(np.mean([paired_difference(x, y).detectable for x, y in zip(a, b, strict=True)]))
    found = []
    for wanted in (planned, reported):
        shares = []
        for a, b, _ in batches(experiments, both, samples, {**model, "effect": effect_of(wanted, model)}, rng):
            ms = mean_squares(b.astype(np.float64) - a)
            shares.append(np.abs(ms.mean) > paired_spread(ms, seeds=seeds, samples=samples).half_width())
        found.append(rate(shares))
    print_power(name, (seeds, samples), (planned, reported), found)


def print_power(name: str, sizes: tuple[int, int], differences: Any, found: list[float]) -> None:
    cells = " | ".join(f"{100 * x:.2f} | {100 * y:.1f}" for x, y in zip(differences, found, strict=True))
    print(f"| {name} | {sizes[0]} | {sizes[1]} | {cells} |", flush=True)


def unpaired(experiments: int, rng: np.random.Generator) -> None:
    print("\n## Arms with different seeds: false alarms of a recipe against itself, 5 % promised\n")
    print(
        "| seeds of the arms | " + " | ".join(f"{P} images, seeds alike | vary | vary much" for P in (200, 1000)) + " |"
    )
    print("| --- |" + " --: |" * 6)
    for seeds in ((2, 2), (3, 3), (3, 5), (3, 10), (5, 5), (10, 10)):
        cells = []
        for P in (200, 1000):
            for seed_sd in (0.0, 0.1, 0.5):
                model = {"accuracy": 0.75, "effect": 0.0, "seed_sd": seed_sd, "taste_sd": 0.0}
                alarms = []
                for a, b, _ in batches(experiments, seeds, P, model, rng):
                    x, y = a.astype(np.float64), b.astype(np.float64)
                    alarms.append(np.abs(y.mean((1, 2)) - x.mean((1, 2))) > unpaired_spread(x, y).half_width())
                cells.append(f"{100 * rate(alarms):.1f}")
        print(f"| {seeds[0]}, {seeds[1]} | " + " | ".join(cells) + " |", flush=True)


def batches(experiments: int, seeds: tuple[int, int], samples: int, model: dict[str, float], rng: Any) -> Iterator[Any]:
    size = max(1_000_000 // (max(seeds) * samples), 4)
    for start in range(0, experiments, size):
        yield simulate.right_or_wrong(min(size, experiments - start), seeds, samples, rng=rng, **model)


def bootstrap_holds(d: np.ndarray, truth: float, weights: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Whether the percentile interval of resampled seeds and resampled images holds the truth, for each of d."""
    seeds, samples = weights
    means = ((d.astype(np.float32) @ samples) * seeds).sum(1)  # experiments, resamples
    low, high = np.quantile(means, (0.025, 0.975), axis=1)
    return (low <= truth) & (truth <= high)


def resampling(seeds: int, samples: int, rng: np.random.Generator, resamples: int = 400) -> Any:
    """Weights of drawing with replacement, seeds x resamples and images x resamples."""
    return tuple((rng.multinomial(n, np.full(n, 1 / n), resamples).T / n).astype(np.float32) for n in (seeds, samples))


def satterthwaite(spread: Spread, alpha: float = 0.05) -> np.ndarray:
    """The usual interval: one t quantile, its degrees of freedom matched to the variance's variance."""
    variance = np.maximum(spread.variance, 1e-300)
    weight = (spread.seed / variance) ** 2 / spread.seed_df + (spread.sample / variance) ** 2 / spread.sample_df
    return stats.t.isf(alpha / 2, 1 / np.maximum(weight, 1e-9)) * np.sqrt(variance)


def draw(experiments: int, seeds: int, samples: int, sds: tuple[float, float, float], mean: float, rng: Any) -> Any:
    seed, sample, rest = sds
    return simulate.normal_mean_squares(
        experiments, seeds, samples, mean=mean, seed_sd=seed, sample_sd=sample, rest_sd=rest, rng=rng
    )


def true_spread(seeds: int, samples: int, sds: tuple[float, float, float]) -> Spread:
    seed, sample, rest = sds
    return Spread(
        seed**2 / seeds + rest**2 / (seeds * samples),
        seeds - 1,
        sample**2 / samples,
        float(samples),
        sample**2 / samples + rest**2 / (seeds * samples),
    )


def effect_of(difference: float, model: dict[str, float]) -> float:
    """The effect in logits that makes this true difference."""

    def excess(effect: float) -> float:
        changed = {**model, "effect": effect}
        return simulate.right_or_wrong(0, (1, 1), 1, rng=np.random.default_rng(0), **changed)[2] - difference

    return float(optimize.brentq(excess, 0, 5))


def found_share(ms: Any, seeds: int, samples: int) -> float:
    return float(np.mean(np.abs(ms.mean) > paired_spread(ms, seeds=seeds, samples=samples).half_width()))


def one(spread: Spread, index: int) -> Spread:
    parts = (spread.seed, spread.seed_df, spread.sample, spread.sample_df, spread.fixed)
    return Spread(*(x[index] if np.ndim(x) else x for x in parts))


def rate(parts: list[np.ndarray]) -> float:
    return float(np.mean(np.concatenate(parts)))


if __name__ == "__main__":
    main()
