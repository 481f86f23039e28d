"""Which settings each arm of a comparison gets: the same for all, unless its own are better by more than chance gives.

An arm that took whatever scored best in its own trials would differ from its twin by the luck of the draw, and the
comparison would then find a difference of settings and call it one of arms. So all arms get the settings that are best
on average over them. One gets its own where these are better for it than for the others by more than its trials
scatter: the difference of differences between arms and candidates, held against that of all candidates by Student's t.
The chance that two arms that are the same get different settings is then at most `ALARM`, and the comparison adds its
own chance of a false alarm to that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts come when they are first used, which takes a moment

from .search import Attempt

ALARM = 0.01  # chance that arms which are the same are told apart by their settings


@dataclass(frozen=True)
class Choice:
    """The settings of the arms."""

    values: Mapping[str, Mapping[str, Any]]  # of each arm's candidate
    own: tuple[str, ...] = ()  # arms whose settings are their own
    noise: float | None = None  # how much a trial scatters from arm to arm; None where that is not known


def choose(attempts: Sequence[Attempt], arms: Sequence[str], *, larger: bool) -> Choice | None:
    """Return each arm's settings; None if no candidate came to an end in all arms."""
    rounds = sorted({one.rung for one in attempts})
    tables = {rung: _table(attempts, arms, rung, sign=1 if larger else -1) for rung in rounds}
    tables = {rung: table for rung, table in tables.items() if table[0]}
    if not tables:
        return None
    numbers, scores = tables[max(tables)]
    best = int(scores.mean(axis=1).argmax())
    values = {one.number: one.values for one in attempts}
    noise, freedom = _noise([scores for _, scores in tables.values()])
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
    """Return the candidates that ended in all arms of a round, and their scores, candidates x arms, more is better."""
    found: dict[int, dict[str, float]] = {}
    for one in attempts:
        if one.rung == rung and one.trial.score is not None:
            found.setdefault(one.number, {})[one.arm] = sign * one.trial.score
    whole = [number for number, scores in found.items() if len(scores) == len(arms)]
    return whole, np.array([[found[number][arm] for arm in arms] for number in whole])


def _noise(tables: Sequence[np.ndarray]) -> tuple[float | None, int]:
    """Return the deviation of a single score beside what candidate and arm explain, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for scores in tables:
        rest = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
        squares += float((rest**2).sum())
        freedom += (scores.shape[0] - 1) * (scores.shape[1] - 1)
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (None, 0)


def _is_own(scores: np.ndarray, arm: int, mine: int, best: int, noise: float, freedom: int) -> bool:
    """Whether an arm gains more by its own candidate than the other arms do, beyond what chance gives."""
    count, arms = scores.shape
    others = np.delete(scores, arm, axis=1)
    gain = (scores[mine, arm] - scores[best, arm]) - float((others[mine] - others[best]).mean())
    spread = noise * np.sqrt(2 * (1 + 1 / (arms - 1)))
    tests = max(count - 1, 1) * arms  # the candidate is the best of several, and every arm is looked at
    if spread == 0:
        return gain > 0
    return bool(scipy.special.stdtr(freedom, -gain / spread) * tests < ALARM)
