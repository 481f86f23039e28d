"""Failed and diverged seeds: rates, and their possible effect on a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .difference import Verdict
from .multiplicity import Judgement
from .proportion import wilson


@dataclass(frozen=True)
class Stability:
    """Numbers of finished, failed and diverged trainings of an arm."""

    tried: int  # trainings that ended, finished or not
    failed: int  # of them, without a result
    diverged: tuple[int, ...] = ()  # seeds near chance level, or with an increased loss
    low: float = 0.0  # lower end of the interval of the share that fails, at the level of the comparison
    high: float = 1.0  # its upper end

    @classmethod
    def count(cls, finished: int, failed: int, diverged: Sequence[int] = (), *, level: float = 0.95) -> "Stability":
        """Return the failure rate of trainings, with its interval."""
        return cls(finished + failed, failed, tuple(diverged), *wilson(failed, finished + failed, level=level))

    @property
    def share(self) -> str:
        """The failure rate as text."""
        return f"{self.failed} of {self.tried} failed ({self.low:.0%} to {self.high:.0%})"


def weigh(judged: Judgement, arm: Stability, reference: Stability, *, worth: tuple[float, float] | None) -> Judgement:
    """Return a judgement that counts failed and diverged trainings.

    A failed training is worth what chance answers. The verdict stands if it does so even where the arm fails as often
    as its interval allows and the reference as seldom, or the other way round where that would turn it.

    Args:
        worth: what a training of the arm, and of the reference, loses by failing, in the direction that is better;
            None where a failed training has no worth that anybody knows.
    """
    failed, diverged = arm.failed + reference.failed, bool(arm.diverged)
    if not failed and not diverged and not reference.diverged:
        return judged
    d, verdict = judged.difference, judged.verdict
    kind: Any = verdict.kind
    # What a diverged training scored is in the mean: an arm that is worse for it is worse.
    if (diverged and kind != "hurts") or (failed and _turns(judged, arm, reference, worth)):
        kind = "unstable"
    parts = [f"over the trainings that finished; of this arm {arm.share}, of the reference {reference.share}"] * (
        failed > 0
    )
    for whose, one in (("this arm", arm), ("the reference", reference)):
        seeds = ", ".join(map(str, one.diverged))
        parts += [f"seed{'s' * (len(one.diverged) > 1)} {seeds} of {whose} finished but did not learn"] if seeds else []
    about = "; ".join(parts)
    numbers = f"{d.span(judged.low, judged.high)} {'' if d.share else d.unit}".rstrip()
    text = f"unstable: {numbers}, {about}" if kind == "unstable" else f"{verdict.text}; {about}"
    return replace(judged, verdict=Verdict(kind, text, None if kind == "unstable" else verdict.more_seeds))


def _turns(judged: Judgement, arm: Stability, reference: Stability, worth: tuple[float, float] | None) -> bool:
    """Whether failures could reverse a verdict; arms without failures are assumed not to fail."""
    if judged.verdict.kind == "cannot tell":
        return False
    if worth is None:
        return True
    sign = 1 if judged.difference.larger_is_better else -1
    low, high = sorted((sign * judged.low, sign * judged.high))
    shares = [(one.low, one.high) if one.failed else (0.0, 0.0) for one in (arm, reference)]
    least = low - shares[0][1] * worth[0] + shares[1][0] * worth[1]
    most = high - shares[0][0] * worth[0] + shares[1][1] * worth[1]
    if judged.verdict.kind == "helps":
        return not least > 0
    if judged.verdict.kind == "hurts":
        return not most < 0
    margin = judged.difference.margin
    return margin is None or not (-margin < least and most < margin)
