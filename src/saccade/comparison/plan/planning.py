"""Make the plan of a comparison: build every arm once, look at what it stands on, time it, and fit it to the budget."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import rich.console
import torch

from ...data.open import Data
from ...data.source import Stream
from ...runs.run import Run
from ...settings import ConfigError, TrainConfig, overlay
from ...settings.strength import settle_strength, settled_strength
from ...support.durations import BudgetError, say_duration
from ...support.spawning import VISIBLE, cores
from ...training.defaults import validate_every
from ...training.loop import Interrupted
from ...training.machine import AFTERWARDS, CLOSING
from ...training.pace import Pace
from ...training.parallel import local_device
from ...tuning.store import Store
from ..run.clock import Job, Limits, part_of
from ..run.folder import Folder, config_hash, is_finished
from ..run.processes import Crew, make_slots, shared_by, visible_gpus
from ..run.worker import pace_of
from .arms import Arm, changed, reference_of
from .budget import RULE, Fit, fit_budget, makespan
from .common import REFERENCE, arm_configs, in_epochs, refuse_earlier, refuse_unread, say_common
from .cut import Cut, pieces
from .plan import Note, Plan, PlannedArm, estimate_detectable
from .ready import Ready
from .request import Request, ask
from .snapshot import ArmSnapshot, DataCache, check_all, inspect_arm, unchanged
from .timing import Timing, as_fast
from .tuned import TunedArms, notes_on_tuning, tune_arms

SLOWER = 1.5  # times as long as the first arm, that others may take where they are not timed
MOST_COMPILED = 0.25  # of the budget, that is set aside for compiling


class Planner:
    """Makes the plan of what is asked."""

    def __init__(self, request: Request) -> None:
        asked = time.monotonic()
        self.begun = asked if request.since is None else request.since
        # Closing takes longer on a busy machine, as starting did.
        self.closing = max(AFTERWARDS, min(asked - self.begun, CLOSING * (request.record["budget"] or 0.0)))
        self.request, self.folder = request, Folder(request.folder)
        self.arms, self.seeds = request.parsed_arms, request.seed_list
        device = request.device or str(request.shared.get("engine.device", "auto"))
        self.slots = make_slots(request.parallel, device, gpus=visible_gpus(), cores=cores())
        self.crew = Crew(self.slots)
        configs = arm_configs(request)
        self.configs = {name: overlay(config, {"seed": self.seeds[0]}) for name, config in configs.items()}
        self.asked: dict[str, int] = {}  # epochs of each arm before they are fitted to a budget
        self.reference = reference_of(self.arms).name
        self.cache = DataCache()
        self.failed: dict[str, str] = {}
        self.paces: dict[str, Pace] = {}
        self.timing = Timing(self.crew, self.cache, gpu=self._kind() == "cuda")
        self.reads_once = False  # whether all runs but the first find their samples in memory
        self.notes: list[Note] = []
        self.tuned: TunedArms | None = None
        self.shortened: dict[str, dict[str, int]] = {}  # epochs by seed and arm, where runs took longer than planned
        self.every = 1  # epochs between validations, where the settings leave that open
        self.twins: dict[str, str] = {}  # for every arm the first one that has the same settings: itself, or another

    @property
    def distinct(self) -> list[str]:
        """The arms that are run: those with settings of their own that could be built."""
        return [name for name in dict.fromkeys(self.twins.values()) if name not in self.failed]

    def spent(self) -> float:
        """Return the seconds that planning has taken so far and the report will take; they belong to the budget."""
        return time.monotonic() - self.begun + self.closing

    def until(self) -> float | None:
        """Return when all runs have to have ended, on the monotonic clock; None without a budget."""
        budget = self.request.record["budget"]
        return None if budget is None else self.begun + budget - self.closing

    def limits(self, ready: Ready) -> Limits:
        """Return what the runs of a plan are held to."""
        rest = {job.whole for job in ready.jobs if not is_finished(job.path)}
        begun = {job.whole for job in ready.jobs if is_finished(job.path)}
        least = 1 if self.request.folds is not None or self.request.seeds_fixed else 2
        return Limits(
            self.until(), self.paces, self._shorten, least=least, done=len(begun - rest), fixed=frozenset(begun & rest)
        )

    def _shorten(self, job: Job, share: float) -> Job:
        """Return a run with a share of its epochs, and write down that it has them."""
        epochs = part_of(job.epochs, share)
        self.shortened.setdefault(str(job.whole), {})[job.arm] = epochs
        fit = (self.folder.record() or {}).get("fit") or {}
        self.folder.add({"fit": {**fit, "shortened": self.shortened}})
        config = overlay(job.config, {"schedule.epochs": epochs})
        return replace(job, config=config, path=self.folder.run_path(job.arm, config))

    def plan(self, *, keep: bool) -> Ready:
        """Make the plan; `keep` writes down in the folder what was asked and decided."""
        before = self.folder.claim(self.request.record, overwrite=self.request.overwrite)
        refuse_earlier(self.request, self.configs, before)
        kept = self.folder.record() or {}  # also where another comparison gives way to this one
        self.crew.call()  # they import while samples are opened and arms are built here
        _, data = self.cache.open(self.configs[self.reference])
        refuse_unread(self.request, self.configs, self.cache, torch.device(self._kind()))
        self.configs = in_epochs(self.configs, self.cache, torch.device(self._kind()))
        self.asked = {name: config.schedule.epochs for name, config in self.configs.items()}
        self._validate_seldom(data, kept)
        settles = bool(kept.get("settled", not kept))  # comparisons begun before stay as they were
        if self.request.record["budget"] is None or not settles:
            self._settle_strength(settles)
        seen: dict[str, str] = {}
        order = [self.reference, *(name for name in self.configs if name != self.reference)]
        self.twins = {name: seen.setdefault(config_hash(self.configs[name]), name) for name in order}
        done = self._tune(kept.get("tuned", [])) if keep and self.request.tune is not None else []
        if not self._done(first := self.distinct[0]):
            self.timing.begin(first, self.configs[first])
        snapshots = self._inspect()
        base = self._base(snapshots)
        ways = {repr((one.config.data, one.config.augment.crop)) for one in snapshots.values()}
        self.reads_once = self.request.folds is None and len(ways) == 1
        question = ask(self.request, base.metrics, base.primary, {n: one.metrics for n, one in snapshots.items()})
        budget, fit = self._fit(before, snapshots)
        self._settle_strength(settles)
        for name, one in snapshots.items():
            known, _ = self.cache.open(self.configs[name])[0].kind.adapt(self.configs[name])
            more = {"schedule.epochs": known.schedule.epochs, **settled_strength(known)}
            snapshots[name] = replace(one, config=overlay(one.config, more))
        jobs = self._jobs()
        going = {job.arm for job in jobs if not is_finished(job.path)}
        keys = {name: f"{config_hash(self.configs[name])}/seed-{self.seeds[0]}" for name in snapshots}
        known = kept.get("samples", kept.get("pictures", {}))
        fingerprints = unchanged(
            self.folder.path, {keys[name]: (one, name in going) for name, one in snapshots.items()}, known
        )
        if keep:
            arms = {**before.get("request", {}).get("arms", {}), **self.request.record["arms"]}
            looks = {"looks": kept["looks"]} if "looks" in kept else {}
            tuned = {"tuned": done} if done else {}
            every = {"every": self.every} if self.every > 1 else {}
            settled = {"settled": True} if settles else {}
            found = {"fit": fit, "samples": fingerprints, **settled, **every, **looks, **tuned}
            found |= {REFERENCE: say_common(self.request)} if not before or REFERENCE in before else {}
            self.folder.write({**self.request.record, "arms": arms}, found)
        cut = self._cut(data)
        plan = self._describe(data.name, snapshots, jobs, budget, cut)
        if cut is not None:
            question = replace(question, folds=cut.folds())
        notes = tuple(dict.fromkeys(self.notes))
        self.timing.end()
        return Ready(plan, jobs, data.outputs, data.whole or data.val, question, notes, self.tuned, cut)

    def _validate_seldom(self, data: Data, kept: Mapping[str, Any]) -> None:
        """Let long runs validate after every few epochs, unless they were begun otherwise or it is asked for."""
        setting = "keep.evaluate_every"
        own = {arm.name for arm in self.arms if setting in arm.settings}
        if kept:
            self.every = kept.get("every", 1)
        elif not own and setting not in self.request.shared and not isinstance(data.train, Stream):
            sizes = len(data.train), len(data.val)
            self.every = min(validate_every(config, *sizes) for config in self.configs.values())
        for name in self.configs if self.every > 1 else ():
            if name not in own:
                self.configs[name] = overlay(self.configs[name], {setting: self.every})

    def _settle_strength(self, settles: bool) -> None:
        """Augment all arms alike: as suits the longest, or as the recipe says."""
        longest = max(config.schedule.epochs for config in self.configs.values()) if settles else sys.maxsize
        self.configs = {name: settle_strength(config, longest) for name, config in self.configs.items()}

    def _cut(self, data: Data) -> Cut | None:
        folds, repeats = self.request.folds, self.request.repeats
        if folds is None:
            return None
        return Cut.of(data, folds=folds, repeats=repeats, seed=self.configs[self.reference].data.split_seed)

    def _tune(self, done: Sequence[str]) -> list[str]:
        """Give the arms the settings that fit them; return the arms that were tuned."""
        names = self.distinct
        shared = [name for name in self.request.shared if name != "data.path"]
        if any(arm.plugins or "model.plugins" in arm.settings for arm in self.arms):
            shared.append("model.plugins")  # which tell the arms apart
        store = Store(self.folder.path / "tuning")
        quiet = self.request.quiet
        console = rich.console.Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False, markup=False)
        try:
            self.tuned = tune_arms(
                {name: self.configs[name] for name in names},
                {arm.name: (*shared, *arm.settings) for arm in self.arms if arm.name in names},
                self.cache,
                store,
                reference=self.twins[self.reference],
                seconds=self.request.record["tune"],
                again=set(done) == set(names),
                device=local_device(self.configs[self.reference].engine.device),
                say=console.print,
            )
        except Interrupted as stopped:  # it is the whole comparison that is resumed
            raise Interrupted(stopped.number, self.folder.path) from None
        for name, twin in self.twins.items():
            self.configs[name] = overlay(self.configs[name], self.tuned.settings[twin])
        self.notes += notes_on_tuning(self.tuned)
        return names

    def _inspect(self) -> dict[str, ArmSnapshot]:
        """Build every distinct arm; one that cannot be built is noted and left out."""
        snapshots: dict[str, ArmSnapshot] = {}
        device = torch.device(self._kind())
        for name in self.distinct:
            try:
                snapshots[name] = inspect_arm(self.configs[name], self.cache, device)
            except Exception as error:  # whatever an arm's model or plug-in does, the others can be compared
                self.failed[name] = str(error) or type(error).__name__
        if not snapshots:
            raise ConfigError(f"no arm can be built; {self.reference}: {self.failed[self.reference]}")
        base = self._base(snapshots)
        for name, one in snapshots.items():
            if one.val != base.val:
                settings = [n for n in changed(base.config, one.config) if n.startswith(("data.", "task"))]
                raise ConfigError(
                    f"arm {name!r} validates on other samples than {self.reference!r} ({one.val.count:,} of "
                    f"fingerprint {one.val.fingerprint[:12]} against {base.val.count:,} of "
                    f"{base.val.fingerprint[:12]}), because of {', '.join(settings) or 'its data'}; only answers to "
                    "the same samples can be compared. Change the training samples alone, or make two comparisons"
                )
        return snapshots

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

    def _paces(self, names: Sequence[str]) -> dict[str, Pace]:
        """Return how long runs of arms take, from finished ones or from a few steps."""
        runs = len(self.distinct) * len(self.seeds) * (self.request.folds or 1) * self.request.repeats
        beside = shared_by(self.slots[:runs])
        for name in names:
            if name in self.paces:
                continue
            config = self.configs[name]
            done = [pace_of(path, config) for path in self._done(name)]
            pace = next((pace for pace in done if pace is not None), None)
            try:
                self.paces[name] = pace or self.timing.pace(name, config, beside=beside, reads_once=self.reads_once)
            except Interrupted:
                raise
            except Exception as error:  # it may well fail in the run itself, which is where that is reported
                self.notes.append(Note("untimed", f"{name} could not be timed: {error}", arm=name))
        return {name: self.paces[name] for name in names if name in self.paces}

    def _take_as_timed(
        self, snapshots: Mapping[str, ArmSnapshot], fit: Callable[[Mapping[str, Pace]], Fit] | None = None
    ) -> None:
        """Take arms for as fast as the first where nothing says otherwise and all would fit were they much slower."""
        first, *others = self.distinct
        pace = None if all(map(self._done, others)) else self._paces([first]).get(first)
        if pace is None:
            return
        slow = replace(pace, step=SLOWER * pace.step, validation=SLOWER * pace.validation)
        with suppress(BudgetError):
            if fit is None or not fit({name: slow if name in others else pace for name in self.distinct}).detail:
                alike = [name for name in others if as_fast(snapshots[first], snapshots[name])]
                self.paces = {**{name: pace for name in alike if not self._done(name)}, **self.paces}

    def _fit(
        self, before: Mapping[str, Any], snapshots: Mapping[str, ArmSnapshot]
    ) -> tuple[str, dict[str, Any] | None]:
        """Reduce seeds and epochs to the budget; once decided, it stays, so that runs can go on."""
        budget, asked = self.request.record["budget"], before.get("request", {})
        if budget is None:
            self._take_as_timed(snapshots)
            return "", None
        fit = before.get("fit")
        if fit is None or asked.get("budget") != budget or asked.get("seeds") != self.request.record["seeds"]:
            names, slots = self.distinct, max(len(self.slots), 1)
            for pace in self._paces(names[:1]).values():  # where even this one does not fit, the others are not timed
                if min(2, len(self.seeds)) * pace.seconds(1) / slots > budget - self.spent():
                    fit_budget(budget, dict.fromkeys(names, pace), dict.fromkeys(names, 1), seeds=2, spent=self.spent())

            def fit_all(paces: Mapping[str, Pace]) -> Fit:
                kinds = {name: snapshots[name].kinds for name in paces}
                compiling = self.timing.compiling(kinds, {name: self.configs[name] for name in paces})
                spent = self.spent() + min(compiling, MOST_COMPILED * budget) + self.timing.reading
                epochs = {name: self.asked[name] for name in paces}
                return fit_budget(budget, paces, epochs, seeds=len(self.seeds), slots=slots, spent=spent)

            self._take_as_timed(snapshots, fit_all)
            paces = self._paces(names)
            if not paces:
                raise BudgetError(f"a budget was given and no arm could be timed: {'; '.join(map(str, self.notes))}")
            found, longest = fit_all(paces), max(self.asked[name] for name in paces)
            fit = {"seeds": found.seeds, "most": max(found.epochs.values()), "longest": longest, "detail": found.detail}
        self.seeds = self.seeds[: fit["seeds"]]
        self.shortened = fit.get("shortened", {})
        for name, config in self.configs.items():
            epochs_here = max(self.asked[name] * fit["most"] // fit["longest"], 1)
            self.configs[name] = overlay(config, {"schedule.epochs": epochs_here})
        detail = fit.get("detail", fit.get("told"))  # "told" in files written before
        return f"{say_duration(budget)} allows {detail or 'all that was asked'} (rule: {RULE})", fit

    def _config(self, name: str, seed: int) -> TrainConfig:
        return overlay(self.configs[name], {"seed": seed})

    def _jobs(self) -> tuple[Job, ...]:
        folds = self.request.folds
        parts = [piece for seed in self.seeds for piece in pieces(seed, folds, self.request.repeats)]
        jobs = []
        for piece in parts:
            for name in self.distinct:
                config = self._config(name, piece.seed)
                if folds is not None:
                    cut = config.data.split_seed + piece.repeat
                    config = overlay(config, {"data.fold": piece.fold, "data.split_seed": cut})
                epochs = self.shortened.get(str(piece.whole), {}).get(name)
                config = config if epochs is None else overlay(config, {"schedule.epochs": epochs})
                path = self.folder.run_path(name, config)
                jobs.append(Job(name, piece.seed, config, path, None if folds is None else piece))
        return tuple(jobs)

    def _describe(
        self, data: str, snapshots: Mapping[str, ArmSnapshot], jobs: Sequence[Job], budget: str, cut: Cut | None
    ) -> Plan:
        rest = [job for job in jobs if not is_finished(job.path)]
        paces = self._paces(list(dict.fromkeys(job.arm for job in rest)))
        known = all(job.arm in paces for job in rest)
        seconds = [paces[job.arm].seconds(job.config.schedule.epochs) for job in rest] if known else []
        base = self._base(snapshots)
        metric = next(one for one in base.metrics if one.name == base.primary)
        done = [Run(job.path).summary() for job in jobs if job.arm == self.reference and is_finished(job.path)]
        samples = base.val.count if cut is None else len(cut.fold[0])
        detectable, how = estimate_detectable(
            metric,
            seeds=len(self.seeds),
            samples=samples,
            arms=max(len({name for name in snapshots if name != self.reference}), 1),
            look=len(self.folder.looks(self.seeds)),
            scores=[summary[f"val_{metric.name}"] for summary in done],
        )
        seen = {self.cache.validation(self._config(self.reference, seed)) for seed in self.seeds[:2]}
        return Plan(
            data=data,
            reference=self.reference,
            arms=tuple(self._planned(arm, snapshots, base, paces) for arm in self.arms),
            seeds=self.seeds,
            samples=samples,
            same_samples=len(seen) == 1,
            runs=len(jobs),
            finished=len(jobs) - len(rest),
            side_by_side=max(len(self.slots), 1),
            seconds=makespan(seconds, max(len(self.slots), 1)) if known else None,
            estimate="; ".join(dict.fromkeys(pace.how for pace in paces.values())) or "no arm could be timed",
            budget=budget,
            detectable=detectable,
            detectable_how=how,
            common=say_common(self.request),
        )

    def _planned(
        self, arm: Arm, snapshots: Mapping[str, ArmSnapshot], base: ArmSnapshot, paces: Mapping[str, Pace]
    ) -> PlannedArm:
        twin, own = self.twins[arm.name], self.configs[arm.name]
        snapshot = snapshots.get(twin)
        return PlannedArm(
            name=arm.name,
            text=arm.text,
            changes=changed(self.configs[self.reference], own),
            checks=() if snapshot is None or snapshot is base else check_all(base, snapshot),
            identical_to=None if twin == arm.name else twin,
            failed=self.failed.get(twin),
            epochs=own.schedule.epochs,
            pace=paces.get(twin),
            parameters=None if snapshot is None else snapshot.parameters,
            macs=None if snapshot is None else snapshot.macs,
            notes=() if snapshot is None else snapshot.notes,
        )
