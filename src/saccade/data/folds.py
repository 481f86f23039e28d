"""Stratified cross-validation folds that never split a group."""

from collections.abc import Sequence

import numpy as np

from .source import Source
from .split import abbreviate, identity


def choose_folds(source: Source, groups: Sequence[str] | None, *, folds: int, seed: int) -> np.ndarray:
    """Return the fold of every sample, N int64; it depends on names and groups, not on their order.

    Groups (without groups, entries of the same name) are assigned whole, the largest first, each to the fold that has
    the fewest samples of its classes so far.
    """
    names = groups if groups is not None else [source.held_by(index) for index in range(len(source))]
    keys = np.array([identity(name, seed) for name in names], dtype=np.int64)
    units, unit = np.unique(keys, return_inverse=True)
    if len(units) < folds:
        what = "groups" if groups is not None else "samples"
        raise ValueError(f"folds={folds}, but there are only {len(units)} {what}; use at most that many folds")
    _, strata = np.unique(source.targets.strata(), return_inverse=True)
    totals = np.bincount(strata).astype(np.float64)
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    order = sorted(range(len(units)), key=lambda one: (-len(members[one]), units[one]))
    held, sizes = np.zeros((len(totals), folds)), np.zeros(folds)
    chosen = np.empty(len(source), dtype=np.int64)
    for one in order:
        kinds, counts = np.unique(strata[members[one]], return_counts=True)
        crowded = (held[kinds] * (counts / totals[kinds])[:, None]).sum(0)
        fold = int(np.lexsort((sizes, np.round(crowded, 12)))[0])
        chosen[members[one]] = fold
        held[kinds, fold] += counts
        sizes[fold] += len(members[one])
    return chosen


def fold_notes(
    source: Source, chosen: np.ndarray, groups: Sequence[str] | None, *, fold: int, unused: Source | None
) -> list[str]:
    """Return remarks on a fold."""
    folds = int(chosen.max()) + 1
    together = f" in {len(set(groups))} groups (not split)" if groups is not None else ""
    count = int((chosen == fold).sum())
    notes = [f"fold {fold + 1} of {folds}: validating on {count} of {len(source)} samples{together}"]
    if unused is not None:
        notes.append(
            f"the dataset's {len(unused)} validation samples are not used, so they can serve as a final test set"
        )
    strata = source.targets.strata()
    rare = [name for place, name in enumerate(source.outputs) if 0 < int((strata == place).sum()) < folds]
    if rare and source.task == "classify":
        notes.append(f"classes with fewer samples than folds, missing in some folds: {abbreviate(rare)}")
    return notes
