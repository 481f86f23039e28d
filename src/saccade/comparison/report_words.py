"""What a comparison found, for a reader who knows no statistics."""

import math
from collections.abc import Sequence

from ..report.markup import shorten
from .paired import Difference
from .result import Comparison
from .verdict import Judgement, out_of_reach

NAME = 80  # characters of an arm's or a class' name
SHARES = ("top1", "top5", "macro_top1")


def score(result: Comparison, value: float | None) -> str:
    """Return a score of an arm as text."""
    if value is None or not math.isfinite(value):
        return "none"
    return f"{100 * value:.2f}%" if result.metric in SHARES else f"{value:.4g}"


def points(share: float) -> float:
    """Return a difference of shares in percentage points, at most the 100 that there are."""
    return min(max(round(100 * share, 2) + 0.0, -100.0), 100.0)  # + 0.0: no minus zero


def bounded(metric: str, value: float) -> float:
    """Return an end of an interval of another number, at most 1 where the number is a share."""
    return min(max(value, -1.0), 1.0) if metric.removeprefix("val_") in (*SHARES, "ece") else value


def scaled(difference: Difference, value: float) -> float:
    """Return a difference in the unit it is told in: percentage points for right and wrong answers."""
    return points(value) if difference.right_or_wrong else value


def unit(difference: Difference) -> str:
    """Return the name of that unit, with a space before it; nothing where it has none."""
    return " points" if difference.right_or_wrong else ""


def size(difference: Difference, value: float) -> str:
    """Return how large a difference is, without its sign."""
    if not math.isfinite(value):
        return "unknown"
    if difference.right_or_wrong and abs(value) > 1:
        return "100"
    return f"{100 * abs(value):.2f}" if difference.right_or_wrong else f"{abs(value):.4g}"


def nothing_found(difference: Difference) -> bool:
    """Whether the smallest difference an experiment finds is larger than any that there can be."""
    return difference.right_or_wrong and difference.detectable > 1


def smallest(difference: Difference) -> str:
    """Return the smallest true difference that an experiment finds, in words."""
    if nothing_found(difference):
        return "nothing"
    found = difference.detectable
    return f"{size(difference, found)}{unit(difference) if math.isfinite(found) else ''}"


def signed(difference: Difference, value: float) -> str:
    """Return a difference with its sign."""
    if not math.isfinite(value):
        return "unknown"
    return f"{scaled(difference, value):+.2f}" if difference.right_or_wrong else f"{value + 0.0:+.4g}"


def better(difference: Difference) -> str:
    """Say on which side of zero an arm is better."""
    return "right" if difference.larger_is_better else "left"


def summary(result: Comparison) -> str:
    """Return one sentence on all arms."""
    kinds: dict[str, list[str]] = {"helps": [], "hurts": [], "no difference": [], "cannot tell": [], "failed": []}
    for arm in result.arms:
        if arm.name != result.reference:
            failed = arm.status == "failed"
            kinds["failed" if failed else result.verdict(arm.name).kind].append(arm.name)
    told = {
        "helps": ("helps", "help"),
        "hurts": ("hurts", "hurt"),
        "no difference": ("makes no difference that matters", "make no difference that matters"),
        "cannot tell": ("cannot be told apart from it yet", "cannot be told apart from it yet"),
        "failed": ("failed", "failed"),
    }
    parts = [f"{_names(names)} {told[kind][len(names) > 1]}" for kind, names in kinds.items() if names]
    return f"Compared with {shorten(result.reference, NAME)}: {'; '.join(parts) or 'there is no other arm'}."


def plain_verdict(result: Comparison, name: str) -> str:
    """Return what follows for an arm, in everyday words."""
    arm = result.arm(name)
    if arm.status == "failed":
        reason = next(iter(arm.failures.values()), "no run was finished")
        return f"It failed: {shorten(reason.partition('. ')[0], 300)}."
    judged = result.differences.get(arm.identical_to or name)
    if judged is None:
        return f"{result.verdict(name).text[:1].upper()}{result.verdict(name).text[1:]}."
    same = f"The same settings as {arm.identical_to}. " if arm.identical_to else ""
    return same + _decided(result, judged) + _about(judged.difference)


def _decided(result: Comparison, judged: Judgement) -> str:
    d, kind = judged.difference, judged.verdict.kind
    seen, low, high = _seen(result, d), _side(d, judged.low), _side(d, judged.high)
    if kind in ("helps", "hurts"):
        return f"{seen}. Chance alone would hardly show that; the true difference is probably between {low} and {high}."
    if kind == "no difference":
        if d.margin is None or (d.mean == 0 and d.spread.certain):
            return "It scores the same as the reference everywhere."
        return f"{seen}. Whatever the true difference is, it is probably smaller than {size(d, d.margin)}{unit(d)}."
    return f"{seen}, but anything from {low} to {high} fits what was seen.{_advice(judged)}"


def _advice(judged: Judgement) -> str:
    more = judged.verdict.more_seeds
    if more is None:
        return ""
    if out_of_reach(more, judged.difference.margin):
        return f" To be sure of a difference as small as this would take {more:,} more seeds of each arm."
    wanted = (
        f"of {size(judged.difference, judged.difference.margin)}" if judged.difference.margin else "as large as this"
    )
    points = unit(judged.difference) if judged.difference.margin else ""
    return f" To find a difference {wanted}{points}, train about {more} more seed{'s' if more > 1 else ''} of each arm."


def _seen(result: Comparison, d: Difference) -> str:
    if d.right_or_wrong:
        among = "Of 100 pictures" if result.metric == "top1" else "Of 100 pictures, every class counted alike"
        return f"{among}, {_side(d, d.mean)} {'is' if size(d, d.mean) == '1.00' else 'are'} right"
    if not math.isfinite(d.mean):
        return f"Its {result.metric} is not a number"
    way = "higher" if d.mean > 0 else "lower"
    return f"Its {result.metric} is {size(d, d.mean)} {way}"


def _side(d: Difference, value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    if not d.right_or_wrong:
        return signed(d, value)
    return f"{size(d, value)} {'fewer' if scaled(d, value) < 0 else 'more'}"


def _about(d: Difference) -> str:
    return " This is said of these trained weights only, not of other trainings." if d.design == "fixed" else ""


def _names(names: Sequence[str]) -> str:
    short = [shorten(name, NAME) for name in names]
    return " and ".join([", ".join(short[:-1]), short[-1]]) if len(short) > 1 else short[0]
