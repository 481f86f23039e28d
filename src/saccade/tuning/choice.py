"""Choose the settings of a comparison's arms: the same for all, unless an arm's own are significantly better.

If every arm took the settings that scored best in its own trials, identical arms would get different settings by
chance, and the comparison would attribute that difference to the arms. So all arms get the settings that are best on
average. An arm gets its own if their advantage for it, compared with the other arms, exceeds the noise of trials: a
Student's t test of the interaction between arm and candidate. Identical arms get different settings with a probability
of at most `ALARM`, which adds to the comparison's own error rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # submodules are loaded when first used

from .search import Attempt

ALARM = 0.01  # probability that identical arms get different settings


@dataclass(frozen=True)
class Choice:
    """The settings of the arms."""

    values: Mapping[str, Mapping[str, Any]]  # settings of each arm
    own: tuple[str, ...] = ()  # arms with their own settings
    noise: float | None = None  # standard deviation of a trial's score; None if unknown


def choose(attempts: Sequence[Attempt], arms: Sequence[str], *, larger: bool) -> Choice | None:
    """Return each arm's settings; None if no candidate finished in all arms."""
    rounds = sorted({one.rung for one in attempts})
    tables = {rung: _table(attempts, arms, rung, sign=1 if larger else -1) for rung in rounds}
    tables = {rung: table for rung, table in tables.items() if table[0]}
    if not tables:
        return None
    numbers, scores = tables[max(tables)]
    best = int(scores.mean(axis=1).argmax())
    values = {one.number: one.values for one in attempts}
    noise, freedom = _noise_level([scores for _, scores in tables.values()])
    chosen, own = {}, []
    for place, arm in enumerate(arms):
        mine = int(scores[:, place].argmax())
        if mine != best and noise is not None and _is_own(scores, place, mine, best, noise, freedom):
            own.append(arm)
        else:
            mine = best
        chosen[arm] = values[numbers[mine]]
    return Choice(chosen, tuple(own), noise)


def _table(attempts: Sequence[Attempt], arms: Sequence[str], rung: int, *, sign: int) -> tuple[list[int], np.ndarray]:
    """Return the candidates that finished in all arms, and their scores, candidates x arms, higher is better."""
    found: dict[int, dict[str, float]] = {}
    for one in attempts:
        if one.rung == rung and one.trial.score is not None:
            found.setdefault(one.number, {})[one.arm] = sign * one.trial.score
    whole = [number for number, scores in found.items() if len(scores) == len(arms)]
    return whole, np.array([[found[number][arm] for arm in arms] for number in whole])


def _noise_level(tables: Sequence[np.ndarray]) -> tuple[float | None, int]:
    """Return the residual standard deviation of a score, given candidate and arm, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for scores in tables:
        rest = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
        squares += float((rest**2).sum())
        freedom += (scores.shape[0] - 1) * (scores.shape[1] - 1)
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (None, 0)


def _is_own(scores: np.ndarray, arm: int, mine: int, best: int, noise: float, freedom: int) -> bool:
    """Whether an arm gains significantly more by its own candidate than the other arms do."""
    count, arms = scores.shape
    others = np.delete(scores, arm, axis=1)
    gain = (scores[mine, arm] - scores[best, arm]) - float((others[mine] - others[best]).mean())
    spread = noise * np.sqrt(2 * (1 + 1 / (arms - 1)))
    tests = max(count - 1, 1) * arms  # corrects for choosing the best candidate, and for all arms
    if spread == 0:
        return gain > 0
    return bool(scipy.special.stdtr(freedom, -gain / spread) * tests < ALARM)
