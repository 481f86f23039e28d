"""Measure finished models: how often they are right, how far to trust their confidence, and what throws them off."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.held_out import some
from ..data.picture import count_bad
from ..data.source import Source
from .asking import Album, Asked, Bars, ask_all
from .attacks import Attack
from .bootstrap import RESAMPLES, Difference, Estimate, Statistic, estimate, interval, mcnemar, resample
from .labels import LabelFile, Truth, labelled_places, read_labels, read_subset, read_truth
from .metrics import by_class, mean_of, over_all, reliability, set_statistics
from .result import Evaluated, Evaluation, Example, choose_folder
from .robust import MEAN, ZERO, Condition, add_means, corruptions, occlusions
from .subjects import EvaluationError, Pictures, Subject, choose, open_pictures, open_subjects, require_same_classes

EPSILONS = (1.0, 4.0)
SHARES = ("top1", "top5")  # metrics that count right answers, besides all conditions


def evaluate(
    targets: str | Path | Sequence[str | Path],
    data: str | Path | None = None,
    *,
    robust: bool = False,
    limit: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    labels: str | Path | None = None,
    subset: str | Path | None = None,
    epsilons: Sequence[float] = EPSILONS,
    steps: int = 10,
    restarts: int = 2,
    resamples: int = RESAMPLES,
    batch_size: int = 64,
    workers: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Evaluation:
    """Measure models on the same pictures, with intervals, and how they differ.

    Args:
        targets: one or several of a run's folder, its `model.safetensors`, a timm model's name; the first is what the
            others are compared with.
        data: pictures, as for `train`; by default those the runs were validated on.
        robust: occlude, corrupt and attack the pictures as well.
        limit: ask about so many pictures only, as evenly over the classes as they allow.
        seed: of the choice of pictures, of all draws and of the resamples.
        device: cpu, cuda, cuda:1, ...
        labels: a JSON file: ReaL's, or the model's class for each class of the pictures.
        subset: a text file of the classes the answer is chosen from, one a line.
        epsilons: of the attacks, in 255ths.
        steps: of PGD from each start.
        restarts: starts of PGD.
        resamples: of the pictures, for the intervals.
        batch_size: pictures at a time; draws do not depend on it.
        workers: processes that read files.
        out: a folder to write evaluation.json and evaluation.html to; where it holds an evaluation already, that one
            stays and a number is added (`evaluation-2`). Nothing is written if not given.
        overwrite: replace the evaluation in `out`.
        quiet: print nothing.
    """
    begun = time.monotonic()
    attacks = [Attack(epsilon=float(e), steps=steps, restarts=restarts) for e in dict.fromkeys(epsilons)]
    if batch_size < 1 or resamples < 100:
        raise EvaluationError(f"batch_size={batch_size} and resamples={resamples} were given; at least 1 and 100")
    names = read_subset(subset) if subset is not None else None
    file = read_labels(labels) if labels is not None else None
    subjects = open_subjects([targets] if isinstance(targets, str | Path) else targets, device=device)
    require_same_classes(subjects)
    if out is not None:
        choose_folder(out, overwrite=overwrite)  # what it refuses is better known before the work than after
    pictures = _chosen(open_pictures(subjects, None if data is None else str(data)), file, limit=limit, seed=seed)
    given: dict[str, Any] = {"places": pictures.places, "labels": file, "subset": names}
    truths = [read_truth(pictures.source, s.shape.classes, whose=s.name, **given) for s in subjects]
    source = pictures.chosen()
    bars = Bars(quiet=quiet)
    for line in plan(subjects, len(source), attacks if robust else []):
        bars.say(line)
    with bars:
        asked, places, bad = ask_all(
            subjects,
            truths,
            source,
            robust=robust,
            attacks=attacks,
            batch_size=batch_size,
            workers=workers,
            seed=seed,
            bars=bars,
        )
    measured = [_measure(found, seed=seed, resamples=resamples) for found in asked]
    notes = [*pictures.notes, *(note for truth in truths for note in truth.notes), *_bad_notes(bad)]
    result = Evaluation(
        runs={
            s.name: _evaluated(s, truth, found, metrics)
            for s, truth, found, (metrics, _) in zip(subjects, truths, asked, measured, strict=True)
        },
        differences=_differences(subjects, asked, measured),
        data=pictures.name,
        pictures=len(places),
        fingerprint=pictures.fingerprint,
        settings=_settings(robust, limit, seed, labels, subset, attacks, resamples),
        notes=tuple(dict.fromkeys([*notes, *_mask_notes(subjects, asked)])),
        seconds=time.monotonic() - begun,
        examples=_examples(subjects[0], source.subset(places[:1]), seed) if robust else (),
    )
    if out is not None:
        result = replace(result, page=result.save(choose_folder(out, overwrite=overwrite), overwrite=overwrite))
        bars.say(f"written: {result.page}")
    return result


def plan(subjects: Sequence[Subject], pictures: int, attacks: Sequence[Attack]) -> list[str]:
    """Return what will be done, in words; without attacks, the clean pictures alone."""
    models, several = f"{len(subjects)} model{'s' * (len(subjects) > 1)}", "s" * (pictures != 1)
    lines = [f"{models} on {pictures:,} picture{several}: 1 clean pass each"]
    if attacks:
        shape = subjects[0].shape
        covered, spoilt = len(occlusions(shape.img_size)), len(corruptions(shape.in_chans))
        most = attacks[0].steps * attacks[0].restarts
        told = ", ".join(f"{attack.epsilon:g}/255" for attack in attacks)
        passes = f"{most} pass{'es' * (most != 1)}"
        lines.append(
            f"robustness: {covered} occlusions and {spoilt} corruptions, a pass each; FGSM, and PGD of at most "
            f"{passes} forward and back, at {told}"
        )
    return lines


def _chosen(pictures: Pictures, file: LabelFile | None, *, limit: int | None, seed: int) -> Pictures:
    """Return the pictures that have labels, at most `limit` of them."""
    source, notes = pictures.source, list(pictures.notes)
    places = labelled_places(source, file)
    if len(places) < len(source):
        left = len(source) - len(places)
        notes.append(f"{left} picture{'s' * (left != 1)} without a right answer left out")
    chosen = choose(source, places, limit=limit, seed=seed)
    if len(chosen) < len(places):
        notes.append(f"{len(chosen)} of {len(places)} pictures, evenly by class (seed {seed})")
    return replace(pictures, places=chosen if len(chosen) < len(source) else None, notes=tuple(notes))


Measured = tuple[dict[str, Estimate], dict[str, np.ndarray]]  # numbers, and their resampled values


def _measure(asked: Asked, *, seed: int, resamples: int) -> Measured:
    """Return every number of a model with its interval."""
    asked.scores = add_means(asked.scores)
    count = len(asked.answers.valid)
    means = list(asked.scores)
    table = np.stack([asked.scores[name] for name in means], 1)
    whole = set_statistics(asked.answers)
    statistics: dict[str, Statistic] = {"means": mean_of(table)} | whole
    drawn = resample(count, statistics, seed=seed, resamples=resamples)
    drawn |= {name: drawn["means"][:, column] for column, name in enumerate(means)}
    found = {name: estimate(float(asked.scores[name].mean()), drawn[name], asked.scores[name]) for name in means}
    found |= {name: estimate(value, drawn[name]) for name, value in over_all(whole, count).items()}
    order = ["top1", "top5", "mean_class", "mcc", "nll", "brier", "ece", MEAN]
    return {name: found[name] for name in dict.fromkeys([*order, *found]) if name in found}, drawn


def _differences(subjects: Sequence[Subject], asked: Sequence[Asked], measured: Sequence[Measured]) -> list[Difference]:
    """Return how every other model differs from the first, over the same resamples."""
    found = []
    base, drawn = measured[0]
    for subject, theirs, (metrics, others) in zip(subjects[1:], asked[1:], measured[1:], strict=True):
        for name in metrics:
            if name not in base:
                continue
            low, high = interval(others[name] - drawn[name])
            p_value = gained = lost = None
            if _counts_right(name) and name in theirs.scores:
                p_value, gained, lost = mcnemar(theirs.scores[name], asked[0].scores[name])
            value = metrics[name].value - base[name].value
            found.append(Difference(subject.name, subjects[0].name, name, value, low, high, p_value, gained, lost))
    return found


def _counts_right(name: str) -> bool:
    """Tell whether a number counts right answers to single pictures."""
    conditions = ("centre_occlusion.", "patch_drop.", "patch_shuffle.", "fgsm.", "pgd.")
    single = name.startswith("corruption.") and name.count(".") == 2
    return name in SHARES or name.startswith(conditions) or single


def _evaluated(subject: Subject, truth: Truth, asked: Asked, metrics: dict[str, Estimate]) -> Evaluated:
    return Evaluated(
        name=subject.name,
        target=subject.target,
        parameters=sum(p.numel() for p in subject.model.parameters()),
        img_size=subject.shape.img_size,
        metrics=metrics,
        classes=by_class(asked.answers, list(truth.classes)),
        reliability=reliability(asked.answers),
    )


def _settings(
    robust: bool,
    limit: int | None,
    seed: int,
    labels: str | Path | None,
    subset: str | Path | None,
    attacks: Sequence[Attack],
    resamples: int,
) -> dict[str, Any]:
    first = attacks[0] if attacks else Attack()
    tried = {"epsilons": [a.epsilon for a in attacks], "steps": first.steps, "step": first.step}
    return {
        "robust": robust,
        "limit": limit,
        "seed": seed,
        "labels": None if labels is None else Path(labels).name,
        "subset": None if subset is None else Path(subset).name,
        "attack": tried | {"restarts": first.restarts} if robust and attacks else None,
        "resamples": resamples,
    }


def _examples(subject: Subject, source: Source, seed: int) -> tuple[Example, ...]:
    """Return the first picture under each kind of condition, at a middle level."""
    album = Album(source, subject.framing, batch_size=1, workers=0, seed=seed)
    framed, _, words = next(iter(album))
    plain = framed[0].permute(1, 2, 0).numpy()
    kinds: dict[str, list[Condition]] = {}
    for condition in [*occlusions(subject.shape.img_size), *corruptions(subject.shape.in_chans)]:
        kinds.setdefault(condition.title, []).append(condition)
    shown = [found[len(found) // 2] for found in kinds.values()]
    return (Example("as it is", plain), *(Example(c.title, c.change(plain, words[0])) for c in shown))


def _bad_notes(bad: dict[str, str]) -> list[str]:
    count = count_bad(bad)
    told = "1 picture could not be read and is" if count == 1 else f"{count} pictures could not be read and are"
    return [f"{told} not counted: {some(sorted(bad))}"] if bad else []


def _mask_notes(subjects: Sequence[Subject], asked: Sequence[Asked]) -> list[str]:
    """Return a remark where a model hides its gradient, which makes FGSM look harmless."""
    return [
        f"{subject.name} has no gradient at {found.scores[ZERO].mean():.0%} of the pictures: FGSM finds nothing there, "
        "so look at PGD, whose random starts and margin loss need none at the picture itself"
        for subject, found in zip(subjects, asked, strict=True)
        if ZERO in found.scores and found.scores[ZERO].mean() > 0.01
    ]
