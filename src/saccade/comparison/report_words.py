"""What a comparison found, for a reader who knows no statistics."""

import math
from collections.abc import Sequence

from ..report.markup import shorten
from .decision import out_of_reach
from .findings import Findings
from .paired import Difference
from .verdict import Judgement

NAME = 80  # characters of an arm's or a class' name


def score(result: Findings, value: float | None) -> str:
    """Return a score of an arm as text."""
    return show(result, result.metric, value)


def show(result: Findings, metric: str | None, value: float | None) -> str:
    """Return a value of a metric as text."""
    if value is None or not math.isfinite(value):
        return "none"
    spec = result.spec(metric)
    return f"{value:.4g}" if spec is None else spec.show(value)


def words(result: Findings, metric: str | None) -> str:
    """Return what people call a metric; its name where nothing is known of it."""
    spec = result.spec(metric)
    return spec.words if spec is not None else metric or "score"


def points(share: float) -> float:
    """Return a difference of shares in percentage points, at most the 100 that there are."""
    return min(max(round(100 * share, 2) + 0.0, -100.0), 100.0)  # + 0.0: no minus zero


def bounded(result: Findings, metric: str, value: float) -> float:
    """Return an end of an interval of another number, at most 1 where the number is a share."""
    spec = result.spec(metric)
    return min(max(value, -1.0), 1.0) if spec is not None and spec.share else value


def scaled(difference: Difference, value: float) -> float:
    """Return a difference in the unit it is told in: percentage points for shares."""
    return points(value) if difference.share else value


def unit(difference: Difference) -> str:
    """Return the name of that unit, with a space before it; nothing where it has none."""
    return " points" if difference.share else f" {difference.unit}" if difference.unit else ""


def size(difference: Difference, value: float) -> str:
    """Return how large a difference is, without its sign."""
    if not math.isfinite(value):
        return "unknown"
    if difference.share and abs(value) > 1:
        return "100"
    return f"{100 * abs(value):.2f}" if difference.share else f"{abs(value):.4g}"


def nothing_found(difference: Difference) -> bool:
    """Whether the smallest difference an experiment finds is larger than any that there can be."""
    return difference.share and difference.detectable > 1


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
    return f"{scaled(difference, value):+.2f}" if difference.share else f"{value + 0.0:+.4g}"


def better(difference: Difference) -> str:
    """Say on which side of zero an arm is better."""
    return "right" if difference.larger_is_better else "left"


def summary(result: Findings) -> str:
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


def plain_verdict(result: Findings, name: str) -> str:
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


def _decided(result: Findings, judged: Judgement) -> str:
    d, kind = judged.difference, judged.verdict.kind
    seen, low, high = _seen(result, d), _side(result, d, judged.low), _side(result, d, judged.high)
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


def _seen(result: Findings, d: Difference) -> str:
    if _counts_pictures(result, d):
        spec = result.spec(result.metric)
        among = (
            "Of 100 pictures, every class counted alike" if spec is not None and spec.by_group else "Of 100 pictures"
        )
        return f"{among}, {_side(result, d, d.mean)} {'is' if size(d, d.mean) == '1.00' else 'are'} right"
    name = words(result, result.metric)
    if not math.isfinite(d.mean):
        return f"Its {name} is not a number"
    way = "higher" if d.mean > 0 else "lower"
    return f"Its {name} is {size(d, d.mean)}{unit(d)} {way}"


def _side(result: Findings, d: Difference, value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    if not _counts_pictures(result, d):
        return f"{signed(d, value)}{unit(d)}"
    return f"{size(d, value)} {'fewer' if scaled(d, value) < 0 else 'more'}"


def _counts_pictures(result: Findings, d: Difference) -> bool:
    """Whether a difference counts right answers, by the scores that runs are judged by."""
    own, judged = result.spec(result.metric), result.spec(result.primary)
    same = own is not None and judged is not None and own.column == judged.column
    return d.right_or_wrong and d.share and same


def _about(d: Difference) -> str:
    return " This is said of these trained weights only, not of other trainings." if d.design == "fixed" else ""


def _names(names: Sequence[str]) -> str:
    short = [shorten(name, NAME) for name in names]
    return " and ".join([", ".join(short[:-1]), short[-1]]) if len(short) > 1 else short[0]
