"""Verdicts of a comparison as text, for page, Markdown file and terminal."""

import math
from collections.abc import Sequence

from ...report.document import Name, Table
from ...report.markup import shorten
from ...statistics.difference import Difference, same_everywhere_hides
from ...statistics.multiplicity import Judgement
from ...statistics.planning import out_of_reach
from ...statistics.proportion import wilson
from ..conclude.findings import ArmResult, Findings

MAX_NAME = 80  # most characters of an arm's or class' name
EFFECTS = {  # for one arm and several
    "helps": ("helps", "help"),
    "hurts": ("hurts", "hurt"),
    "no difference": ("makes no difference that matters", "make no difference that matters"),
    "cannot tell": ("shows no conclusive difference yet", "show no conclusive difference yet"),
    "unstable": ("is unstable", "are unstable"),
    "never applied": ("was never applied", "were never applied"),
    "failed": ("failed", "failed"),
}
HOW = {
    "Arm": "One training setup: the reference, or the reference with a change, such as an added plug-in. Everything "
    "else is held equal.",
    "Seed": "Training is random: two runs of the same arm end differently. So each arm is trained several times, "
    "each time with another seed, and arms are compared seed by seed.",
    "Points": "One point is one {of} in a hundred: from 90% to 91% is one point.",
    "Interval": "The range of true differences that fit these runs and these samples. If it does not contain zero, "
    "chance alone is an unlikely explanation of the difference.{cut}",
    "Cannot tell": "Not the same as no difference. The experiment is too small to decide: more seeds or more "
    "validation samples narrow the interval.",
    "Unstable": "Runs failed or did not learn. The interval covers those that finished; counting the others could "
    "reverse it.",
    "Not covered": "Nothing follows for other kinds of samples, other models or longer training, nor for rare "
    "failures: with no failure in {seeds} runs, up to {unseen:.0%} of runs may still fail.",
}


def title(result: Findings) -> str:
    """Return the title."""
    return f"Which arm helps on {shorten(result.plan.data, 120)}"


def kind_of(result: Findings, name: str) -> str:
    """Return the short verdict on an arm."""
    return "failed" if result.arm(name).status == "failed" else result.verdict(name).kind


def summary(result: Findings) -> str:
    """Return one sentence on all arms."""
    kinds: dict[str, list[str]] = {kind: [] for kind in EFFECTS}
    for arm in result.arms:
        if arm.name != result.reference:
            kinds[kind_of(result, arm.name)].append(shorten(arm.name, MAX_NAME))
    parts = [f"{_listed(names)} {EFFECTS[kind][len(names) > 1]}" for kind, names in kinds.items() if names]
    return f"Compared with {shorten(result.reference, MAX_NAME)}: {'; '.join(parts) or 'there is no other arm'}."


def verdicts(result: Findings) -> Table | None:
    """Return the verdict on every arm."""
    rows = [
        (Name(arm.name), kind_of(result, arm.name), in_words(result, arm.name))
        for arm in result.arms
        if arm.name != result.reference
    ]
    return Table(about(result), ("Arm", "Verdict", "In words"), tuple(rows)) if rows else None


def about(result: Findings) -> str:
    """Return the scope of the verdicts."""
    seeds = len(result.arm(result.reference).seeds)
    return (
        f"{result.words(result.metric)} on {result.plan.samples:,} validation samples, compared with "
        f"{shorten(result.reference, MAX_NAME)}, trained {seeds} time{'' if seeds == 1 else 's'}"
    )


def how_to_read(result: Findings) -> list[tuple[str, str]]:
    """Return the glossary."""
    spec = result.spec(result.metric)
    share = spec is not None and spec.share
    of = "sample" if result.metric in result.binary else "part"
    cut = " It is cut at 100 points, the largest possible difference." if share else ""
    seeds = len(result.arm(result.reference).seeds)
    known = {"of": of, "cut": cut, "seeds": seeds, "unseen": wilson(0, seeds)[1]}
    unstable = any(kind_of(result, arm.name) == "unstable" for arm in result.arms)
    left_out = {word for word, wanted in (("Points", share), ("Unstable", unstable)) if not wanted}
    return [(word, text.format(**known)) for word, text in HOW.items() if word not in left_out]


def in_words(result: Findings, name: str) -> str:
    """Return the verdict on an arm, for readers without knowledge of statistics."""
    arm = result.arm(name)
    if arm.status == "failed":
        return f"It failed: {shorten(next(iter(arm.failures.values()), 'no run finished'), 300)}"
    judged = result.differences.get(arm.identical_to or name)
    if judged is None or result.never_applied(name) is not None:
        return f"{capital(result.verdict(name).text)}."
    same = f"The same settings as {arm.identical_to}. " if arm.identical_to else ""
    about = ""
    if judged.difference.design == "fixed":
        about += " This holds for these trained weights only, not for other runs."
    if judged.difference.samples_fixed:
        about += " This holds for these samples only, not for others."
    return same + _decided(result, judged) + _unsteady(result, arm) + about


def _unsteady(result: Findings, arm: ArmResult) -> str:
    """Return the failure and divergence rates, if any training failed."""
    found = ""
    for tried in (arm, result.arm(result.reference)):
        whose, one = f"{tried.name}'s", tried.stability
        if one is not None and one.failed:
            may = f"{one.low:.0%} to {one.high:.0%} of runs may fail"
            found += f" Of {whose} {one.tried} runs, {one.failed} failed, so {may}."
        if one is not None and one.diverged:
            found += f" {len(one.diverged)} of {whose} runs finished but did not learn."
    return found


def _decided(result: Findings, judged: Judgement) -> str:
    d, kind = judged.difference, judged.verdict.kind
    seen, low, high = _seen(result, d), _side(result, d, judged.low), _side(result, d, judged.high)
    if kind in ("helps", "hurts"):
        return (
            f"{seen}. Chance alone is an unlikely explanation; the true difference is probably between {low} and "
            f"{high}."
        )
    if kind == "no difference":
        if d.margin is None or (d.mean == 0 and d.spread.certain):
            return "It scores the same as the reference everywhere."
        return f"{seen}. Whatever the true difference is, it is probably smaller than {d.amount(d.margin)}."
    if kind == "unstable":
        return (
            f"{seen} in the runs that finished, where anything from {low} to {high} is consistent with the results. "
            "But not all runs succeeded:"
        )
    if d.mean == 0 and d.spread.certain:
        return (
            f"It is right and wrong on the same {d.n_samples:,} samples as the reference, which can hide a "
            f"difference of up to {d.amount(same_everywhere_hides(d))}. Train longer, or validate on more samples."
        )
    return f"{seen}, but anything from {low} to {high} is consistent with the results.{_advice(judged)}"


def _advice(judged: Judgement) -> str:
    more, d = judged.verdict.more_seeds, judged.difference
    if more is None:
        return ""
    if out_of_reach(more, d.margin):
        return f" Detecting a difference as small as this would take {more:,} more seeds of each arm."
    wanted = f"of {d.amount(d.margin)}" if d.margin else "as large as this"
    return f" To detect a difference {wanted}, train about {more} more seed{'s' if more > 1 else ''} of each arm."


def _seen(result: Findings, d: Difference) -> str:
    if _counts_samples(result, d):
        spec = result.spec(result.metric)
        alike = ", every class counted equally" if spec is not None and spec.by_group else ""
        verb = "is" if d.size(d.mean) == "1.00" else "are"
        return f"Of 100 samples{alike}, {_side(result, d, d.mean)} {verb} right"
    name = result.words(result.metric)
    if not math.isfinite(d.mean):
        return f"Its {name} is not a number"
    return f"Its {name} is {d.amount(d.mean)} {'higher' if d.mean > 0 else 'lower'}"


def _side(result: Findings, d: Difference, value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    if not _counts_samples(result, d):
        return f"{d.signed(value)} {d.unit_name}".rstrip()
    return f"{d.size(value)} {'fewer' if d.scaled(value) < 0 else 'more'}"


def _counts_samples(result: Findings, d: Difference) -> bool:
    """Whether a difference counts correct predictions, in the primary metric."""
    own, judged = result.spec(result.metric), result.spec(result.primary)
    same = own is not None and judged is not None and own.column == judged.column
    return d.right_or_wrong and d.share and same


def capital(text: str) -> str:
    """Capitalise the first letter."""
    return f"{text[:1].upper()}{text[1:]}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
