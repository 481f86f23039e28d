"""How often `compare --tune` raises a false alarm: two or three arms that are the same, tuned and then compared.

    python benchmarks/statistics/tuned_alarms.py --rounds 4000          # about two minutes on one core; prints a table

An arm's score is a curve over the candidates (a parabola over doublings of the rate, the peak drawn anew each time)
and noise of the trial; the longer trials of the second round scatter less. Settings are chosen by
`saccade.tuning.choice`, or by each arm's own best (what one would do without it). Then each arm is trained with five
fresh seeds on its settings, a validation sample scores right or wrong, and `saccade.statistics_difference`
judges. A false alarm is an interval without zero. Promised: at most 5 % of the comparison and 1 % of the choice.
"""

import argparse

import numpy as np

from saccade.statistics import paired_difference
from saccade.training.trial import Trial
from saccade.tuning.choice import ALARM, choose
from saccade.tuning.search import Attempt

SEEDS, SAMPLES = 5, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4000)
    args = parser.parse_args()
    print(
        "| arms | candidates | noise of a trial | fall a doubling² | own settings | alarms, own best | alarms, chosen |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for arms, count in ((2, 6), (2, 12), (3, 6)):
        for noise, fall in ((0.01, 0.01), (0.03, 0.01), (0.03, 0.03)):
            print(simulate(arms, count, noise, fall, rounds=args.rounds), flush=True)


def simulate(arms: int, count: int, noise: float, fall: float, *, rounds: int) -> str:
    rng = np.random.default_rng(7)
    alarms = {"own best": 0, "chosen": 0}
    different = 0
    names = [f"arm {number}" for number in range(arms)]
    for _ in range(rounds):
        peak = rng.uniform(0, 5)
        truth = 0.75 - fall * (np.arange(count) % 6 - peak) ** 2 - 0.005 * (np.arange(count) // 6)
        attempts = trials(truth, names, noise, rng)
        chosen = choose(attempts, names, larger=True)
        assert chosen is not None
        picked = {"chosen": [chosen.values[name]["at"] for name in names]}
        last = [one for one in attempts if one.rung == 1]
        picked["own best"] = [
            max((one for one in last if one.arm == name), key=lambda one: one.trial.score or 0.0).values["at"]
            for name in names
        ]
        different += len(set(picked["chosen"])) > 1
        for way, places in picked.items():
            alarms[way] += alarm([truth[place] for place in places], rng)
    shares = {way: f"{count / rounds:.1%}" for way, count in alarms.items()}
    own = f"{different / rounds:.2%} (at most {ALARM:.0%})"
    return f"| {arms} | {count} | {noise} | {fall} | {own} | {shares['own best']} | {shares['chosen']} |"


def trials(truth: np.ndarray, names: list[str], noise: float, rng: np.random.Generator) -> list[Attempt]:
    """Return two rounds: all candidates, then the three that are best on average over the arms."""
    found = []
    first = truth[:, None] - 0.1 + noise * rng.standard_normal((len(truth), len(names)))
    going = np.argsort(-first.mean(axis=1))[: max(len(truth) // 3, 2)]
    second = truth[going, None] + 0.7 * noise * rng.standard_normal((len(going), len(names)))
    for rung, places, scores in ((0, range(len(truth)), first), (1, going.tolist(), second)):
        for row, place in enumerate(places):
            for column, name in enumerate(names):
                trial = Trial(float(scores[row, column]))
                found.append(Attempt(name, place, {"at": place}, rung, 3 ** (rung + 1), trial))
    return found


def alarm(means: list[float], rng: np.random.Generator) -> bool:
    """Whether any arm is told apart from the first, with as many tests as there are arms."""
    ease = rng.normal(size=SAMPLES)
    level = 1 - 0.05 / max(len(means) - 1, 1)
    answers = []
    for mean in means:
        shift = np.quantile(ease, 1 - min(max(mean, 0.01), 0.99))
        seeds = 0.01 * rng.standard_normal((SEEDS, 1))
        answers.append((ease[None] + seeds + 0.5 * rng.standard_normal((SEEDS, SAMPLES)) > shift).astype(float))
    for other in answers[1:]:
        found = paired_difference(answers[0], other, level=level)
        if found.low > 0 or found.high < 0:
            return True
    return False


if __name__ == "__main__":
    main()
