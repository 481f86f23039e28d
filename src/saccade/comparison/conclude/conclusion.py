"""Conclude a comparison from its runs, including failed ones."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...statistics.difference import Difference
from ...statistics.multiplicity import judge
from ...statistics.stability import Stability, weigh
from ..page.result import Comparison
from ..plan.plan import Note, PlannedArm
from ..plan.ready import Ready
from ..run.folder import Folder
from ..run.worker import Outcome
from .evidence import find_unaffected
from .findings import ArmResult
from .measure import Measure


def conclude(ready: Ready, outcomes: Mapping[tuple[str, int], Outcome], folder: Folder) -> Comparison:
    """Return the findings of the finished runs."""
    plan, question = ready.plan, ready.question
    runs = {arm.name: ready.finished(arm.name) for arm in plan.arms}
    failures = {arm.name: _failures(ready, arm.name, outcomes) for arm in plan.arms}
    measure = Measure({name: ready.evidence(name) for name in runs}, question)
    least = 1 if question.fixed or ready.folds is not None else 2
    usable = [name for name in runs if len(runs[name]) >= least]
    reference = plan.reference if plan.reference in usable else next(iter(usable), None)
    unaffected = find_unaffected(plan, measure.arms)
    notes = [one.note for one in unaffected]
    if ready.folds is not None:
        notes.append(Note("folds", ready.folds.describe(seeds=len(plan.seeds) * len(ready.folds.fold))))
    notes += [*_failure_notes(failures, plan.reference, reference), *ready.notes]
    if plan.side_by_side > 1:
        notes.append(
            Note(
                "timing", f"training times were measured with up to {plan.side_by_side} concurrent runs on this machine"
            )
        )
    differences = {}
    distinct = [arm.name for arm in plan.arms if arm.identical_to is None]
    compared = [name for name in distinct if reference is not None and name != reference and runs[name]]
    for name in compared:
        try:
            differences[name] = measure.difference(reference or "", name)
        except ValueError as error:
            notes.append(Note("not compared", f"{name}: {error}", arm=name))
    look = 0 if question.fixed or reference is None else folder.count_look(tuple(runs[reference]))
    judged = judge(differences, margin=question.margin, look=look) if differences else {}
    failed = {name: sum(seed >= 0 for seed in found) for name, found in failures.items()}
    stability = {name: measure.stability(name, failed[name]) for name in runs if runs[name]}
    for name, one in judged.items():
        worth = measure.failure_loss(name, reference or "")
        judged[name] = weigh(one, stability[name], stability[reference or ""], worth=worth)
    if look > 1:
        message = (
            f"this is look {look} at these arms, with seeds added in between; intervals and p-values are corrected "
            "for repeated looks"
        )
        notes.append(Note("looks", message))
    outputs, source = ready.outputs, ready.validation
    other: dict[str, dict[str, Difference]] = {}
    for name in judged:
        for number, difference in measure.others(reference or "", name).items():
            other.setdefault(number, {})[name] = difference
    return Comparison(
        path=folder.path,
        plan=replace(plan, same_samples=measure.same),
        metric=question.metric,
        reference=reference or plan.reference,
        arms=tuple(
            _arm_result(arm, runs[arm.name], failures[arm.name], measure, stability.get(arm.name)) for arm in plan.arms
        ),
        differences=judged,
        other=other,
        classes={name: measure.classes(reference or "", name, outputs) for name in judged},
        disagreements={name: measure.disagreements(reference or "", name, source) for name in judged},
        costs={arm.name: measure.cost(reference, arm.name, arm) for arm in plan.arms},
        notes=(*notes, *measure.notes),
        unaffected=unaffected,
        primary=question.primary,
        metrics=measure.metrics,
        binary=measure.binary,
        class_metric=measure.class_metric,
        sample_metric=measure.sample_metric,
        look=look,
        tuned=ready.tuned,
    )


def _failures(ready: Ready, name: str, outcomes: Mapping[tuple[str, int], Outcome]) -> dict[int, str]:
    planned = ready.plan.arm(name)
    if planned.failed is not None:
        return {-1: planned.failed}
    own = planned.identical_to or name
    return {
        job.seed: outcomes[(own, job.seed)].reason
        for job in ready.jobs
        if job.arm == own and (own, job.seed) in outcomes and outcomes[(own, job.seed)].kind != "finished"
    }


def _failure_notes(failures: Mapping[str, Mapping[int, str]], reference: str, used: str | None) -> list[Note]:
    notes = []
    for name, found in failures.items():
        seeds = [str(seed) for seed in found if seed >= 0]
        which = f", seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}" if seeds else ""
        notes += [Note("failure", f"{name} failed{which}: {next(iter(found.values()))}", arm=name)] if found else []
    if used is None:
        notes.append(Note("reference", "no arm has enough finished runs for a comparison"))
    elif used != reference:
        message = f"the reference {reference} has too few finished runs, so the others are compared with {used} instead"
        notes.append(Note("reference", message))
    return notes


def _arm_result(
    planned: PlannedArm,
    runs: Mapping[int, Path],
    failures: Mapping[int, str],
    measure: Measure,
    stability: Stability | None,
) -> ArmResult:
    scores = tuple(measure.score(planned.name, seed) for seed in runs)
    return ArmResult(
        name=planned.name,
        text=planned.text,
        status="failed" if not runs else "partly failed" if failures else "finished",
        seeds=tuple(runs),
        scores=scores,
        mean=sum(scores) / len(scores) if scores else None,
        runs=dict(runs),
        failures=dict(failures),
        identical_to=planned.identical_to,
        stability=stability,
    )
