"""Arms that came out exactly like another one: what they change had no effect, which is mostly a mistake."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .evidence import Evidence
from .plan import Plan

Same = Literal["everything", "training", "answers"]
TOLD: dict[Same, tuple[str, str]] = {
    "everything": ("trained exactly like", "had no effect"),
    "training": ("trained exactly like", "had no effect on training"),
    "answers": ("answers exactly like", "had no effect on the weights"),
}


@dataclass(frozen=True)
class Unaffected:
    """An arm that came out like another one to the bit, though their settings differ.

    Attributes:
        arm: its name.
        like: name of the other.
        seeds: with which it did.
        same: "training", the losses of all epochs; "answers" to all validation pictures; or "everything".
    """

    arm: str
    like: str
    seeds: tuple[int, ...]
    same: Same

    def __str__(self) -> str:
        did, effect = TOLD[self.same]
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        return (
            f"{self.arm} {did} {self.like} with {seeds}: what it changes {effect} there; check that the arm does what "
            "it says"
        )


def find_unaffected(plan: Plan, arms: Mapping[str, Evidence]) -> tuple[Unaffected, ...]:
    """Return the arms of different settings whose runs of one seed are the same, each with the first it is like.

    Args:
        plan: whose arms they are; those of identical settings share their runs and are not meant.
        arms: finished runs of each, by name.
    """
    distinct = [arm.name for arm in plan.arms if arm.identical_to is None]
    distinct.sort(key=lambda name: name != plan.reference)
    found: dict[tuple[str, str, Same], list[int]] = {}
    for number, name in enumerate(distinct):
        for seed in arms[name].seeds:
            for other in distinct[:number]:
                same = _compare(arms[other], arms[name], seed, kept_only=_differ_in_keeping(plan, other, name))
                if same is not None:
                    found.setdefault((name, other, same), []).append(seed)
                    break
    return tuple(Unaffected(name, other, tuple(seeds), same) for (name, other, same), seeds in found.items())


def _compare(first: Evidence, second: Evidence, seed: int, *, kept_only: bool) -> Same | None:
    """Return what is the same in two runs of one seed.

    Losses alone say too little of a single epoch, in which a step may come before anything has changed, and of arms
    that differ in what is kept, such as averaged weights, which are taken from the same training.
    """
    if seed not in first.seeds:
        return None
    losses = [[record.get("train_loss") for record in arm.records[seed]] for arm in (first, second)]
    trained = bool(losses[0]) and None not in losses[0] and losses[0] == losses[1]
    if first.digests[seed] == second.digests[seed]:
        return "everything" if trained else "answers"
    return "training" if trained and len(losses[0]) > 1 and not kept_only else None


def _differ_in_keeping(plan: Plan, first: str, second: str) -> bool:
    """Whether two arms differ only in what is kept of a training."""
    one, two = plan.arm(first).changes, plan.arm(second).changes
    return all(name.startswith("keep.") for name in {**one, **two} if one.get(name) != two.get(name))
