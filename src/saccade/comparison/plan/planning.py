"""Plan a comparison: build and inspect every arm once, time it, and fit the runs to the budget."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import rich.console
import torch

from ...data.open import Data
from ...data.source import Stream
from ...runs.run import Run
from ...settings import TrainConfig
from ...settings.compared import COMPARED
from ...settings.decisions import beside_recipe, decide, put
from ...settings.facts import ComparedFacts, Facts, TimeFacts
from ...support.durations import say_duration
from ...support.spawning import VISIBLE, cores
from ...training.defaults import validate_every
from ...training.loop import Interrupted
from ...training.machine import AFTERWARDS, CLOSING, MARGIN
from ...training.parallel import local_device
from ...training.resolve import resolve
from ...tuning.store import Store
from ..conclude.evidence import refuse_frames_of
from ..run.folder import Folder, config_hash, is_finished
from ..run.processes import Crew, make_slots, shared_by, visible_gpus
from ..run.scheduler import Job, Limits, part_of
from .arms import changed, find_twins, reference_of
from .budget import USUAL_SEEDS, BudgetRequest, makespan
from .common import REFERENCE, arm_configs, count_in_epochs, inspect_arms, refuse_earlier, refuse_unread, say_common
from .fitting import BudgetFitting, say_budget, say_outlook
from .folds import FoldAssignment, FoldRun, fold_runs
from .plan import Note, Plan, PlannedArm, describe, estimate_detectable, say_size
from .ready import Ready
from .request import Request, resolve_metric
from .snapshot import ArmSnapshot, DataCache, inspect_arm, unchanged
from .timing import Timing
from .tuned import TunedArms, notes_on_tuning, tune_arms


class Planner:
    """Makes the plan of a request."""

    def __init__(self, request: Request) -> None:
        self.request, self.folder, self.budget = request, Folder(request.folder), request.record["budget"]
        asked = time.monotonic()
        self.started = asked if request.since is None else request.since
        # Closing takes longer on a busy machine, as starting did.
        self.closing = max(AFTERWARDS, min(asked - self.started, CLOSING * (self.budget or 0.0)))
        self.arms, self.seeds = request.parsed_arms, request.seed_list
        device = request.device or str(request.shared.get("engine.device", "auto"))
        self.slots = make_slots(request.parallel, device, gpus=visible_gpus(), cores=cores())
        self.crew = Crew(self.slots)
        self.configs = arm_configs(request)
        for name in self.configs:
            self.configs.decide(name, seed=self.seeds[0])
        self.wanted_epochs: dict[str, int] = {}  # epochs of each arm before they are fitted to a budget
        self.reference = reference_of(self.arms).name
        self.cache = DataCache()
        self.failed: dict[str, str] = {}
        self.timing = Timing(self.crew, self.cache, gpu=self._kind() == "cuda", done=self._done)
        runs = {"slots": max(len(self.slots), 1), "folds": (request.folds or 1) * request.repeats}
        named = request.seeds is not None  # what is chosen has to last to the end: all seeds get as many epochs
        asked_for = BudgetRequest(self.budget or 0.0, len(self.seeds), named, reserve=1.0 if named else MARGIN, **runs)
        self.fitting = BudgetFitting(asked_for, self.timing, self.spent)
        self.notes: list[Note] = []
        self.tuned: TunedArms | None = None
        self.shortened: dict[str, dict[str, int]] = {}  # epochs by seed and arm, where runs took longer than planned
        self.every = 1  # epochs between validations, where the settings leave that open
        self.twins: dict[str, str] = {}  # for every arm the first one that has the same settings: itself, or another

    @property
    def distinct(self) -> list[str]:
        """The arms to run: those that could be built and differ in settings."""
        return [name for name in dict.fromkeys(self.twins.values()) if name not in self.failed]

    def spent(self) -> float:
        """Return the seconds used by planning and reserved for the report, which count towards the budget."""
        return time.monotonic() - self.started + self.closing

    def until(self) -> float | None:
        """Return the deadline of all runs, by `time.monotonic`; None without a budget."""
        return None if self.budget is None else self.started + self.budget - self.closing

    def limits(self, ready: Ready) -> Limits:
        """Return the limits on a plan's runs."""
        rest = {job.cv_pass for job in ready.jobs if not is_finished(job.path)}
        begun = {job.cv_pass for job in ready.jobs if is_finished(job.path)}
        least = 1 if self.request.folds is not None or self.request.seeds_fixed else 2
        more: dict[str, Any] = {"least": least, "done": len(begun - rest), "fixed": frozenset(begun & rest)}
        return Limits(self.until(), self.timing.known, self._shorten, **more)

    def _shorten(self, job: Job, share: float) -> Job:
        """Return a run with a fraction of its epochs, and record the number."""
        epochs = part_of(job.epochs, share)
        self.shortened.setdefault(str(job.cv_pass), {})[job.arm] = epochs
        fit = (self.folder.record() or {}).get("fit") or {}
        self.folder.add({"fit": {**fit, "shortened": self.shortened}})
        return self._job(job.arm, job.fold_run or FoldRun(job.seed, job.seed, 0, 0))

    def plan(self, *, keep: bool) -> Ready:
        """Make the plan; `keep` stores the request and decisions in the folder."""
        before = self.folder.claim(self.request.record, overwrite=self.request.overwrite)
        refuse_earlier(self.request, self.configs, before)
        kept = self.folder.record() or {}  # also where another comparison gives way to this one
        self.crew.call()  # they import while samples are opened and arms are built here
        _, data = self.cache.open(self.configs[self.reference])
        accepted = before.get("request", {}).get("arms", {})  # arms that may have been planned by an earlier version
        refuse_unread(self.request, self.configs, self.cache, torch.device(self._kind()), accepted=accepted)
        count_in_epochs(self.configs, self.cache, torch.device(self._kind()))
        self.wanted_epochs = {name: config.schedule.epochs for name, config in self.configs.items()}
        self._validate_seldom(data, kept)
        settles = bool(kept.get("settled", not kept))  # comparisons begun before stay as they were
        if self.budget is None or not settles:
            self._settle_strength(settles)
        fit = self._fit_before(before)
        facts = None if self.budget is None else self._choose_size(fit)
        self.twins = find_twins(self.configs, self.reference, accepted=accepted)
        done = self._tune(kept.get("tuned", [])) if keep and self.request.tune is not None else []
        runs = len(self.distinct) * len(self.seeds) * self.fitting.asked.folds
        self.timing.beside = shared_by(self.slots[:runs])
        if not self._done(first := self.distinct[0]) and first not in self.timing.known:
            self.timing.begin(first, self.configs[first])
        configs = {name: self.configs[name] for name in self.distinct}
        snapshots, self.failed = inspect_arms(configs, self.reference, self.cache, torch.device(self._kind()))
        base = self._base(snapshots)
        ways = {repr((one.config.data, one.config.augment.crop)) for one in snapshots.values()}
        self.timing.reads_once = self.request.folds is None and len(ways) == 1
        metrics = {name: one.metrics for name, one in snapshots.items()}
        question = resolve_metric(self.request, base.metrics, base.primary, metrics)
        configs = {name: self.configs[name] for name in self.distinct}
        if facts is None:
            self.timing.take_as_timed(configs, snapshots, lambda _: True)
        else:
            fit = fit or self.fitting.fit(configs, snapshots, self.wanted_epochs)
            self._take(fit, facts)
        self._settle_strength(settles)
        for name, one in snapshots.items():
            record, config = [*self.configs.records[name]], self.configs[name]
            resolved, _ = resolve(config, *self.cache.open(config), torch.device(self._kind()), record=record)
            snapshots[name] = replace(one, config=resolved, decisions=tuple(beside_recipe(record, resolved)))
        jobs = self._jobs()
        going = {job.arm for job in jobs if not is_finished(job.path)}
        refuse_frames_of({job.path: (job.arm, snapshots[job.arm].own_frame) for job in jobs})
        keys = {name: f"{config_hash(self.configs[name])}/seed-{self.seeds[0]}" for name in snapshots}
        known = kept.get("samples", kept.get("pictures", {}))
        fingerprints = unchanged(
            self.folder.path, {keys[name]: (one, name in going) for name, one in snapshots.items()}, known
        )
        if keep:
            arms = {**before.get("request", {}).get("arms", {}), **self.request.record["arms"]}
            every = self.every if self.every > 1 else None
            named = REFERENCE in before or not before
            optional = {"settled": settles, "every": every, "looks": kept.get("looks"), "tuned": done}
            optional[REFERENCE] = say_common(self.request) if named else None
            found = {"fit": fit, "samples": fingerprints, **{name: one for name, one in optional.items() if one}}
            self.folder.write({**self.request.record, "arms": arms}, found)
        assignment, folds = None, self.request.folds
        if folds is not None:
            assignment = FoldAssignment.of(
                data, folds=folds, repeats=self.request.repeats, seed=base.config.data.split_seed
            )
        plan = self._describe(data.name, snapshots, jobs, fit, assignment)
        if assignment is not None:
            question = replace(question, folds=assignment.folds())
        notes = tuple(dict.fromkeys([*self.notes, *self.timing.notes]))
        self.timing.end()
        return Ready(plan, jobs, data.outputs, data.whole or data.val, question, notes, self.tuned, assignment)

    def _validate_seldom(self, data: Data, kept: Mapping[str, Any]) -> None:
        """Let long runs validate every few epochs, unless earlier runs or the settings say otherwise."""
        setting = "keep.evaluate_every"
        own = {arm.name for arm in self.arms if setting in arm.settings}
        if kept:
            self.every = kept.get("every", 1)
        elif not own and setting not in self.request.shared and not isinstance(data.train, Stream):
            sizes = len(data.train), len(data.val)
            self.every = min(validate_every(config, *sizes) for config in self.configs.values())
        for name in self.configs if self.every > 1 else ():
            if name not in own:
                self.configs.decide(name, every=self.every, validated=len(data.val))

    def _settle_strength(self, settles: bool) -> None:
        """Give all arms the same augmentation strength: that of the longest, or the recipe's."""
        longest = max(config.schedule.epochs for config in self.configs.values()) if settles else sys.maxsize
        for name in self.configs:
            self.configs.decide(name, longest=longest)

    def _tune(self, done: Sequence[str]) -> list[str]:
        """Tune the arms' settings; return the tuned arms."""
        names = self.distinct
        shared = [name for name in self.request.shared if name != "data.path"]
        if any(arm.plugins or "model.plugins" in arm.settings for arm in self.arms):
            shared.append("model.plugins")  # which tell the arms apart
        console = rich.console.Console(
            stderr=True, quiet=self.request.quiet, soft_wrap=True, highlight=False, markup=False
        )
        try:
            self.tuned = tune_arms(
                {name: self.configs[name] for name in names},
                {arm.name: (*shared, *arm.settings) for arm in self.arms if arm.name in names},
                self.cache,
                Store(self.folder.path / "tuning"),
                reference=self.twins[self.reference],
                seconds=self.request.record["tune"],
                again=set(done) == set(names),
                device=local_device(self.configs[self.reference].engine.device),
                say=console.print,
            )
        except Interrupted as stopped:  # it is the whole comparison that is resumed
            raise Interrupted(stopped.number, self.folder.path) from None
        for name, twin in self.twins.items():
            self.configs.decide(name, tuned=self.tuned.settings[twin])
        self.notes += notes_on_tuning(self.tuned)
        return names

    def _base(self, snapshots: Mapping[str, ArmSnapshot]) -> ArmSnapshot:
        """Return the reference, or the first arm that could be built."""
        return snapshots.get(self.reference) or next(iter(snapshots.values()))

    def _kind(self) -> str:
        if any(VISIBLE in slot.environment for slot in self.slots):
            return "cuda"
        return "cpu" if (asked := self.configs[self.reference].engine.device) == "auto" else asked.partition(":")[0]

    def _done(self, name: str) -> list[Path]:
        """Return the finished runs of an arm."""
        paths = [self.folder.run_path(name, self._config(name, seed)) for seed in self.seeds]
        return [path for path in paths if is_finished(path)]

    def _fit_before(self, before: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the earlier fit to the same budget, which is kept so that runs can be resumed."""
        asked, seeds = before.get("request", {}), self.request.record["seeds"]
        same = asked.get("seeds") in (seeds, [*range(USUAL_SEEDS)] if seeds is None else seeds)
        return before.get("fit") if same and asked.get("budget") == self.budget else None

    def _choose_size(self, fit: Mapping[str, Any] | None) -> TimeFacts:
        """Give all arms the model and image size that fit the budget, by the rules of a run."""
        facts = self.fitting.facts
        if fit is not None:
            facts = TimeFacts(**fit["size"]) if "size" in fit else facts
        elif self.request.leaves_size:
            self.timing.reads_once = self.request.folds is None
            epochs = {config_hash(config): self.wanted_epochs[name] for name, config in self.configs.items()}
            config, kinds = self.configs[self.reference], frozenset[str]()
            self.timing.beside = shared_by(self.slots[: len(epochs) * len(self.seeds) * self.fitting.asked.folds])
            if self.timing.compiles(config):
                with suppress(Exception):  # whatever is wrong with an arm is said where it is built
                    kinds = inspect_arm(config, self.cache, torch.device(self._kind())).kinds
            self.timing.known[self.reference] = self.fitting.choose_size(config, epochs, kinds)
            facts = self.fitting.facts
        for name in self.configs:
            self.configs.fit(name, facts, without=("epochs-in-time",))
        return facts

    def _take(self, fit: Mapping[str, Any], facts: TimeFacts) -> None:
        """Give the arms the seeds and epochs that fit the budget."""
        self.seeds = self.seeds[: fit["seeds"]]
        self.shortened = fit.get("shortened", {})
        pace = (
            f"about {say_duration(fit['seconds'])} for all arms and seeds"
            if "seconds" in fit
            else "what fits the budget"
        )
        for name, asked in self.wanted_epochs.items():
            epochs = max(asked * fit["most"] // fit["longest"], 1)
            self.configs.fit(name, replace(facts, epochs=epochs, pace=pace))

    def _config(self, name: str, seed: int) -> TrainConfig:
        return put(self.configs[name], {"seed": seed})

    def _job(self, name: str, fold_run: FoldRun) -> Job:
        """Return an arm's run for a seed, or for one of its folds."""
        fold = fold_run if self.request.folds is not None else None
        place: dict[str, Any] = {} if fold is None else {"fold": fold.fold, "repeat": fold.repeat}
        facts = ComparedFacts(fold_run.seed, **place, epochs=self.shortened.get(str(fold_run.cv_pass), {}).get(name))
        record = [*self.configs.records[name]]
        config = decide(self.configs[name], Facts(compared=facts), COMPARED, record=record)
        return Job(name, fold_run.seed, config, self.folder.run_path(name, config), fold, tuple(record))

    def _jobs(self) -> tuple[Job, ...]:
        parts = [one for seed in self.seeds for one in fold_runs(seed, self.request.folds, self.request.repeats)]
        return tuple(self._job(name, fold_run) for fold_run in parts for name in self.distinct)

    def _describe(
        self,
        data: str,
        snapshots: Mapping[str, ArmSnapshot],
        jobs: Sequence[Job],
        fit: Mapping[str, Any] | None,
        assignment: FoldAssignment | None,
    ) -> Plan:
        rest = [job for job in jobs if not is_finished(job.path)]
        paces = self.timing.paces({job.arm: self.configs[job.arm] for job in rest})
        timed = all(job.arm in paces for job in rest)
        seconds = [paces[job.arm].seconds(job.config.schedule.epochs) for job in rest] if timed else []
        base = self._base(snapshots)
        metric = next(one for one in base.metrics if one.name == base.primary)
        done = [Run(job.path).summary() for job in jobs if job.arm == self.reference and is_finished(job.path)]
        samples = base.val.count if assignment is None else len(assignment.fold[0])
        known: dict[str, Any] = {"samples": samples, "scores": [summary[f"val_{metric.name}"] for summary in done]}
        known["arms"] = max(len({name for name in snapshots if name != self.reference}), 1)

        def detectable(seeds: int, look: int = 1) -> tuple[float | None, str]:
            return estimate_detectable(metric, seeds=seeds, look=look, **known)

        found, how = detectable(len(self.seeds), len(self.folder.looks(self.seeds)))
        arms = tuple(
            PlannedArm(
                arm.name,
                arm.text,
                changes=changed(self.configs[self.reference], self.configs[arm.name]),
                identical_to=None if twin == arm.name else twin,
                failed=self.failed.get(twin),
                epochs=self.configs[arm.name].schedule.epochs,
                pace=paces.get(twin),
                **describe(snapshots.get(twin), base),
            )
            for arm, twin in ((arm, self.twins[arm.name]) for arm in self.arms)
        )
        seen = {self.cache.validation(self._config(self.reference, seed)) for seed in self.seeds[:2]}
        return Plan(
            data=data,
            reference=self.reference,
            arms=arms,
            seeds=self.seeds,
            samples=samples,
            same_samples=len(seen) == 1,
            runs=len(jobs),
            finished=len(jobs) - len(rest),
            side_by_side=max(len(self.slots), 1),
            seconds=makespan(seconds, max(len(self.slots), 1)) if timed else None,
            estimate="; ".join(dict.fromkeys(pace.how for pace in paces.values())) or "no arm could be timed",
            budget=say_budget(self.budget, fit),
            outlook=say_outlook(fit, lambda seeds: detectable(seeds)[0]),
            size=say_size(base),
            detectable=found,
            detectable_how=how,
            common=say_common(self.request),
        )
