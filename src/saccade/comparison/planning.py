"""Make the plan of a comparison: build every arm once, look at what it stands on, time it, and fit it to the budget."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..config import ConfigError, TrainConfig, overlay
from ..data.source import Source
from ..runs import Run, RunError
from ..training.loop import Interrupted
from .arms import Arm, changed, reference_of
from .budget import RULE, BudgetError, Pace, fit_budget, makespan, say_duration
from .checks import check_all
from .folder import Folder, config_hash, is_finished
from .footing import Footing, Library, stand
from .plan import Plan, PlannedArm, foresee
from .schedule import Job, Slot, time_probe
from .worker import pace_of


@dataclass(frozen=True)
class Ready:
    """A plan with its runs.

    Attributes:
        plan: what was found.
        jobs: every run of every distinct arm, seed by seed, so that a stop leaves whole pairs.
        classes: names of the classes.
        validation: the pictures that the first seed validates on.
        notes: for the result.
    """

    plan: Plan
    jobs: tuple[Job, ...]
    classes: tuple[str, ...]
    validation: Source
    notes: tuple[str, ...] = ()

    def finished(self, name: str) -> dict[int, Path]:
        """Return the finished runs of an arm by seed."""
        own = self.plan.arm(name).identical_to or name
        return {job.seed: job.path for job in self.jobs if job.arm == own and is_finished(job.path)}


class Planner:
    """Knows what is asked and makes the plan of it.

    Args:
        arms: in the order given.
        seeds: asked.
        recipe: of all arms that do not name their own.
        shared: settings of all arms, by dotted name.
        request: all of that as JSON holds it, to be written down.
        folder: of the comparison.
        slots: where runs go.
        overwrite: let this take the place of another comparison in the folder.
    """

    def __init__(
        self,
        *,
        arms: Sequence[Arm],
        seeds: Sequence[int],
        recipe: str | None,
        shared: Mapping[str, Any],
        request: Mapping[str, Any],
        folder: Folder,
        slots: Sequence[Slot],
        overwrite: bool = False,
    ) -> None:
        self.arms, self.seeds = tuple(arms), tuple(seeds)
        self.request, self.folder, self.slots, self.overwrite = dict(request), folder, list(slots), overwrite
        if any("optim.lr" in arm.settings for arm in arms):  # then no arm's batches or rate are fitted to the pictures
            shared = {"optim.least_steps": None, **shared}
        configs = {arm.name: arm.configure(recipe, shared) for arm in arms}
        self.configs = {name: overlay(config, {"seed": self.seeds[0]}) for name, config in configs.items()}
        self.asked = {name: config.schedule.epochs for name, config in self.configs.items()}
        self.reference = reference_of(arms).name
        self.library = Library()
        self.failed: dict[str, str] = {}
        self.paces: dict[str, Pace] = {}
        self.notes: list[str] = []

    def plan(self, *, keep: bool) -> Ready:
        """Make the plan.

        Args:
            keep: write down in the folder what was asked and decided.
        """
        before = self.folder.claim(self.request, overwrite=self.overwrite)
        known = (self.folder.record() or {}).get("pictures", {})
        data = self.library.open(self.configs[self.reference])
        twins = self._twins()
        footings = self._stand(twins)
        told, fit = self._fit(before, twins)
        footings = {
            name: replace(f, config=overlay(f.config, {"schedule.epochs": self.configs[name].schedule.epochs}))
            for name, f in footings.items()
        }
        pictures = self._unchanged(footings, known)
        if keep:
            arms = {**before.get("request", {}).get("arms", {}), **self.request["arms"]}
            self.folder.write({**self.request, "arms": arms}, {"fit": fit, "pictures": pictures})
        jobs = self._jobs(twins)
        plan = self._describe(data.name, twins, footings, jobs, told)
        return Ready(plan, jobs, data.classes, data.val, tuple(dict.fromkeys(self.notes)))

    def _twins(self) -> dict[str, str]:
        """Return for every arm the first one that has the same settings: itself, or an earlier one."""
        first: dict[str, str] = {}
        order = [self.reference, *(name for name in self.configs if name != self.reference)]
        return {name: first.setdefault(config_hash(self.configs[name]), name) for name in order}

    def _stand(self, twins: Mapping[str, str]) -> dict[str, Footing]:
        """Build every distinct arm; one that cannot be built is noted and left out."""
        footings: dict[str, Footing] = {}
        device = torch.device(self._kind())
        for name in dict.fromkeys(twins.values()):
            try:
                footings[name] = stand(self.configs[name], self.library, device)
            except Exception as error:  # whatever an arm's model or plug-in does, the others can be compared
                self.failed[name] = str(error) or type(error).__name__
        if not footings:
            raise ConfigError(f"no arm can be built; {self.reference}: {self.failed[self.reference]}")
        base = footings.get(self.reference) or next(iter(footings.values()))
        for name, footing in footings.items():
            if footing.val != base.val:
                settings = [n for n in changed(base.config, footing.config) if n.startswith("data.")]
                raise ConfigError(
                    f"arm {name!r} validates on other pictures than {self.reference!r} ({footing.val.count:,} of "
                    f"fingerprint {footing.val.fingerprint[:12]} against {base.val.count:,} of "
                    f"{base.val.fingerprint[:12]}), because of {', '.join(settings) or 'its data'}; only answers to "
                    "the same pictures can be compared. Change the training pictures alone, or make two comparisons"
                )
        return footings

    def _kind(self) -> str:
        if any("CUDA_VISIBLE_DEVICES" in slot.environment for slot in self.slots):
            return "cuda"
        return "cpu" if (asked := self.configs[self.reference].engine.device) == "auto" else asked.partition(":")[0]

    def _paces(self, names: Sequence[str]) -> dict[str, Pace]:
        """Return how long runs of arms take, from finished ones or from a few steps."""
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                if name in self.paces:
                    continue
                config = self.configs[name]
                paths = [self._path(name, seed) for seed in self.seeds]
                done = [pace_of(path, config) for path in paths if is_finished(path)]
                pace = next((pace for pace in done if pace is not None), None)
                try:
                    self.paces[name] = pace or time_probe(config, self.slots, Path(folder))
                except Interrupted:
                    raise
                except Exception as error:  # it may well fail in the run itself, which is where that is reported
                    first = str(error).split(". ")[0]  # the rest is about a folder that is gone
                    self.notes.append(f"{name} could not be timed: {first}")
        return {name: self.paces[name] for name in names if name in self.paces}

    def _fit(self, before: Mapping[str, Any], twins: Mapping[str, str]) -> tuple[str, dict[str, Any] | None]:
        """Reduce seeds and epochs to the budget; once decided, it stays, so that runs can go on."""
        budget, asked = self.request["budget"], before.get("request", {})
        if budget is None:
            return "", None
        fit = before.get("fit")
        if fit is None or asked.get("budget") != budget or asked.get("seeds") != self.request["seeds"]:
            names = [name for name in dict.fromkeys(twins.values()) if name not in self.failed]
            paces = self._paces(names)
            if not paces:
                raise BudgetError(f"a budget was given and no arm could be timed: {'; '.join(self.notes)}")
            epochs = {name: self.asked[name] for name in paces}
            found = fit_budget(budget, paces, epochs, seeds=len(self.seeds), slots=max(len(self.slots), 1))
            most, longest = max(found.epochs.values()), max(epochs.values())
            fit = {"seeds": found.seeds, "most": most, "longest": longest, "told": found.told}
        self.seeds = self.seeds[: fit["seeds"]]
        for name, config in self.configs.items():
            epochs_here = max(self.asked[name] * fit["most"] // fit["longest"], 1)
            self.configs[name] = overlay(config, {"schedule.epochs": epochs_here})
        told = f"{say_duration(budget)} allows {fit['told'] or 'all that was asked'} (rule: {RULE})"
        return told, fit

    def _unchanged(self, footings: Mapping[str, Footing], known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fingerprints of the arms' pictures; refuse to mix runs from before and after a change of them."""
        pictures = dict(known)
        for name, footing in footings.items():
            key = f"{config_hash(self.configs[name])}/seed-{self.seeds[0]}"
            found = {"train": footing.train.fingerprint, "val": footing.val.fingerprint}
            if pictures.setdefault(key, found) != found:
                raise RunError(
                    f"the pictures of {footing.config.data.path or 'the embedded set'} are others than when the "
                    f"comparison in {self.folder.path} was begun; its runs cannot be compared with new ones. Name "
                    "another folder by --out, or put the pictures back"
                )
        return pictures

    def _path(self, name: str, seed: int) -> Path:
        return self.folder.run_path(name, self._config(name, seed))

    def _config(self, name: str, seed: int) -> TrainConfig:
        return overlay(self.configs[name], {"seed": seed})

    def _jobs(self, twins: Mapping[str, str]) -> tuple[Job, ...]:
        names = [name for name in dict.fromkeys(twins.values()) if name not in self.failed]
        return tuple(
            Job(name, seed, self._config(name, seed), self._path(name, seed)) for seed in self.seeds for name in names
        )

    def _describe(
        self,
        data: str,
        twins: Mapping[str, str],
        footings: Mapping[str, Footing],
        jobs: Sequence[Job],
        told: str,
    ) -> Plan:
        rest = [job for job in jobs if not is_finished(job.path)]
        paces = self._paces(list(dict.fromkeys(job.arm for job in rest)))
        known = all(job.arm in paces for job in rest)
        seconds = [paces[job.arm].seconds(job.config.schedule.epochs) for job in rest] if known else []
        done = [Run(j.path).summary()["val_top1"] for j in jobs if j.arm == self.reference and is_finished(j.path)]
        base = footings.get(self.reference) or next(iter(footings.values()))
        others = len({name for name in footings if name != self.reference})
        detectable, how = foresee(seeds=len(self.seeds), pictures=base.val.count, arms=max(others, 1), accuracies=done)
        seen = {self.library.validation(self._config(self.reference, seed)) for seed in self.seeds[:2]}
        return Plan(
            data=data,
            reference=self.reference,
            arms=tuple(self._planned(arm, twins[arm.name], footings, base, paces) for arm in self.arms),
            seeds=self.seeds,
            pictures=base.val.count,
            same_pictures=len(seen) == 1,
            runs=len(jobs),
            finished=len(jobs) - len(rest),
            side_by_side=max(len(self.slots), 1),
            seconds=makespan(seconds, max(len(self.slots), 1)) if known else None,
            estimate="; ".join(dict.fromkeys(pace.how for pace in paces.values())) or "no arm could be timed",
            budget=told,
            detectable=detectable,
            detectable_how=how,
        )

    def _planned(
        self, arm: Arm, twin: str, footings: Mapping[str, Footing], base: Footing, paces: Mapping[str, Pace]
    ) -> PlannedArm:
        footing, own = footings.get(twin), self.configs[arm.name]
        is_base = footing is base
        return PlannedArm(
            name=arm.name,
            text=arm.text,
            changes=changed(self.configs[self.reference], own),
            checks=() if footing is None or is_base else check_all(base, footing),
            identical_to=None if twin == arm.name else twin,
            failed=self.failed.get(twin),
            epochs=own.schedule.epochs,
            pace=paces.get(twin),
            parameters=None if footing is None else footing.parameters,
            macs=None if footing is None else footing.macs,
            notes=() if footing is None else footing.notes,
        )
