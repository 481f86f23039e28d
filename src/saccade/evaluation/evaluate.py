"""Evaluate models by their task's metrics, with intervals, also on corrupted and attacked images."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.image import Fault, count_bad
from ..data.source import Source
from ..data.spec import IMAGE
from ..data.split import abbreviate
from ..statistics.bootstrap import RESAMPLES, Resampled, ResampledDifference
from .classes.attacks import Attack
from .classes.judge import ClassJudge
from .classes.options import ClassOptions, read_options
from .findings import Evaluated, Example
from .inference import FramedImages, ProgressBars, collect_outputs
from .judge import Judge
from .masks import MaskJudge, ObjectJudge
from .opening import EvaluatedModel, EvaluatedSet, EvaluationError, choose, open_models, open_set
from .result import FOLDER, Evaluation
from .robust import Condition, corruptions, occlusions

EPSILONS = (1.0, 4.0)
JUDGES: dict[str, type[Judge]] = {
    "classify": ClassJudge,
    "segment": MaskJudge,
    "detect": ObjectJudge,
}  # tasks with further metrics


def evaluate(
    targets: str | Path | Sequence[str | Path],
    data: str | Path | None = None,
    *,
    columns: str | Mapping[str, str] | None = None,
    task: str | None = None,
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
    """Evaluate models on the same images, with intervals, and compare them.

    Args:
        targets: one or several of: run folder, `model.safetensors`, timm model name, NAME@FILE. The others are compared
            with the first.
        data: dataset, as for `train`; default: the runs' validation samples.
        columns: column mapping of a list, as for `train`.
        task: the models' task with options for inference, such as "segment:flip=true"; default: as in training.
        robust: also evaluate occluded and corrupted images and, for classifiers, attacks.
        limit: number of images, stratified by the targets; default: all.
        seed: random seed (subset, corruptions, bootstrap).
        device: cpu, cuda, cuda:1, ...
        labels: for classifiers, a JSON file: ReaL's, or a mapping of the dataset's classes to the model's.
        subset: for classifiers, a text file of the classes to choose from, one a line.
        epsilons: epsilons of the attacks, in 1/255.
        steps: PGD steps from each start.
        restarts: PGD starts.
        resamples: bootstrap resamples for the intervals.
        batch_size: batch size, which does not change results.
        workers: processes that read files.
        out: folder for evaluation.json and evaluation.html; if it has an evaluation, a number is added
            (`evaluation-2`). Default: nothing is written.
        overwrite: replace the evaluation in `out`.
        quiet: print nothing.
    """
    started = time.monotonic()
    options = read_options(labels=labels, subset=subset, epsilons=epsilons, steps=steps, restarts=restarts)
    if batch_size < 1 or resamples < 100:
        raise EvaluationError(f"batch_size={batch_size} and resamples={resamples}: they must be at least 1 and 100")
    named = [targets] if isinstance(targets, str | Path) else targets
    models = open_models(named, device=device, task=task, own=data is None)
    kind = JUDGES.get(models[0].spec.task, Judge)
    resamples = min(resamples, kind.resamples)
    if robust and models[0].loaded.task.reader.reads != "image":
        raise EvaluationError(
            f"robust: {models[0].name} does not read images only; occlusions and corruptions need images"
        )
    kind.check(models, options)
    if out is not None:
        FOLDER.choose(out, overwrite=overwrite)  # refuse an unusable folder before the work
    samples = kind.align(open_set(models, None if data is None else str(data), columns), models)
    samples = _chosen(samples, kind, options, limit=limit, seed=seed)
    judges = kind.prepare(models, samples, options)
    source, bars = samples.chosen(), ProgressBars(quiet=quiet)
    attacks = options.attacks if robust and kind.attackable else ()
    for line in plan(models, len(source), robust=robust, attacks=attacks, kind=kind):
        bars.say(line)
    with bars:
        places, bad = collect_outputs(
            judges,
            source,
            robust=robust,
            attacked=bool(attacks),
            batch_size=batch_size,
            workers=workers,
            seed=seed,
            bars=bars,
        )
    numbers = [judge.numbers(seed=seed, resamples=resamples) for judge in judges]
    asked = [f"task options: {task}"] if task is not None else []
    notes = [*(note for model in models for note in model.loaded.notes), *asked]
    notes += [*samples.notes, *(note for judge in judges for note in judge.notes()), *_bad_notes(bad)]
    if robust and not kind.attackable:
        notes.append("attacks skipped: they need a classifier")
    first = judges[0]
    result = Evaluation(
        runs={judge.model.name: _evaluated(judge, found, source) for judge, found in zip(judges, numbers, strict=True)},
        differences=_differences(judges, numbers),
        data=samples.name,
        samples=len(places),
        fingerprint=samples.fingerprint,
        settings=_settings(robust, limit, seed, labels, subset, attacks, resamples),
        task=first.model.spec.task,
        primary=first.primary,
        specs={name: spec for name, spec in first.specs().items() if name in numbers[0]},
        notes=tuple(dict.fromkeys(notes)),
        seconds=time.monotonic() - started,
        examples=_examples(first.model, source.subset(places[:1]), seed) if robust else (),
    )
    if out is not None:
        result = replace(result, page=result.save(FOLDER.choose(out, overwrite=overwrite), overwrite=overwrite))
        bars.say(f"written: {result.page}")
    return result


def plan(
    models: Sequence[EvaluatedModel],
    images: int,
    *,
    robust: bool,
    attacks: Sequence[Attack],
    kind: type[Judge] = Judge,
) -> list[str]:
    """Describe the evaluation."""
    named, several = f"{len(models)} model{'s' * (len(models) > 1)}", "s" * (images != 1)
    lines = [f"evaluating {named} on {images:,} sample{several}"]
    if robust:
        spec = models[0].spec
        covered, spoilt = (
            sum(kind.takes(condition) for condition in found)
            for found in (occlusions(spec.img_size), corruptions(spec.in_chans))
        )
        more = f", {len(kind.conditions())} levels of light noise and blur" if kind.conditions() else ""
        lines.append(f"robustness: {covered} occlusions, {spoilt} corruptions{more}, one pass each")
    if attacks:
        most = attacks[0].steps * attacks[0].restarts
        text = ", ".join(f"{attack.epsilon:g}/255" for attack in attacks)
        passes = f"{most} forward and backward pass{'es' * (most != 1)}"
        lines[-1] += f"; FGSM, and PGD with at most {passes}, at epsilon {text}"
    return lines


def _chosen(
    samples: EvaluatedSet, kind: type[Judge], options: ClassOptions, *, limit: int | None, seed: int
) -> EvaluatedSet:
    """Return labelled samples, at most `limit`."""
    source, notes = samples.source, list(samples.notes)
    places = kind.answerable(source, options)
    if len(places) < len(source):
        unlabelled = len(source) - len(places)
        notes.append(f"{unlabelled} sample{'s' * (unlabelled != 1)} without a label excluded")
    chosen = choose(source, places, limit=limit, seed=seed)
    if len(chosen) < len(places):
        notes.append(f"{len(chosen)} of {len(places)} samples, {kind.evenly} (seed {seed})")
    return replace(samples, places=chosen if len(chosen) < len(source) else None, notes=tuple(notes))


def _differences(judges: Sequence[Judge], numbers: Sequence[Mapping[str, Resampled]]) -> list[ResampledDifference]:
    """Return the differences of the other models from the first, over the same resamples."""
    base, reference = numbers[0], judges[0].model.name
    return [
        found.minus(base[metric], run=judge.model.name, reference=reference, metric=metric)
        for judge, own in zip(judges[1:], numbers[1:], strict=True)
        for metric, found in own.items()
        if metric in base
    ]


def _evaluated(judge: Judge, numbers: Mapping[str, Resampled], source: Source) -> Evaluated:
    model = judge.model
    return Evaluated(
        name=model.name,
        target=model.target,
        parameters=sum(p.numel() for p in model.loaded.model.parameters()),
        img_size=model.spec.img_size,
        frame=IMAGE if model.spec.own_frame else None,
        metrics={name: found.estimate() for name, found in numbers.items()},
        sections=tuple(judge.sections(source)),
        **judge.details(),
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


def _examples(model: EvaluatedModel, source: Source, seed: int) -> tuple[Example, ...]:
    """Return the first image under each kind of condition, at medium severity."""
    batch, rng_keys = next(iter(FramedImages(source, model, batch_size=1, workers=0, seed=seed)))
    plain = batch["image"][0].permute(1, 2, 0).numpy()
    kinds: dict[str, list[Condition]] = {}
    for condition in [*occlusions(model.spec.img_size), *corruptions(model.spec.in_chans)]:
        kinds.setdefault(condition.title, []).append(condition)
    shown = [found[len(found) // 2] for found in kinds.values()]
    return (Example("original", plain), *(Example(c.title, c.change(plain, rng_key=rng_keys[0])) for c in shown))


def _bad_notes(bad: dict[str, Fault]) -> list[str]:
    count = count_bad(bad)
    text = "1 sample could not be read and is" if count == 1 else f"{count} samples could not be read and are"
    return [f"{text} not counted: {abbreviate(sorted(bad))}"] if bad else []
