"""Fit a comparison to a budget: model and image size by the rules of a run, then seeds and epochs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ...settings import TrainConfig
from ...settings.facts import TimeFacts
from ...support.durations import BudgetError, say_duration
from ...support.wording import count_of
from ...training.machine import ENOUGH, TIMING, Tried, say_smaller, smaller_settings, time_facts, try_smaller
from ...training.pace import Pace
from .budget import RULE, USUAL_SEEDS, BudgetFit, BudgetRequest, fit_budget, makespan
from .snapshot import ArmSnapshot
from .timing import Timing

LONGER = (30 * 60.0, 8 * 3600.0)  # seconds of other budgets that are told about: half an hour, and a night
MOST_COMPILED = 0.25  # of the budget, that is set aside for compiling


class BudgetFitting:
    """Chooses model, image size, seeds and epochs for a budget.

    Args:
        asked: what is to fit, and into which time.
        timing: of the arms.
        spent: returns the seconds that planning took so far and closing will take.

    Attributes:
        tried: settings of the reference that were timed, from those asked for to those taken; empty where model and
            size are not chosen.
    """

    def __init__(self, asked: BudgetRequest, timing: Timing, spent: Callable[[], float]) -> None:
        self.asked, self.timing, self.spent = asked, timing, spent
        self.tried: Sequence[Tried] = ()
        self.compiling = 0.0  # seconds

    @property
    def facts(self) -> TimeFacts:
        """The facts from which a run's rules change model and size; the time of an epoch is known later."""
        if not self.tried:
            return TimeFacts(say_duration(self.asked.budget), 0, "")
        seeds = self.asked.seeds if self.asked.named else USUAL_SEEDS
        runs = f"all arms with {count_of(seeds, 'seed')}"
        return time_facts(self.tried, self.asked.budget, epochs=self.tried[-1].epochs, took="", runs=runs)

    def choose_size(self, config: TrainConfig, epochs: Mapping[str, int], kinds: frozenset[str] = frozenset()) -> Pace:
        """Time the reference's settings, then smaller ones, until enough epochs fit; return the last pace.

        Args:
            config: of the reference.
            epochs: asked, of each arm.
            kinds: the reference's repeated blocks, which a GPU compiles.
        """
        self._reserve_compiling({"": kinds}, {"": config})

        def try_one(candidate: TrainConfig) -> Tried:
            self.timing.reading = 0.0
            pace = self.timing.pace("", candidate)
            fitting = self._usual(dict.fromkeys(epochs, pace), epochs, self.asked)
            return Tried(candidate, pace, fitting, max(epochs.values()))

        candidates = smaller_settings(config, *self.timing.cache.open(config), gpu=self.timing.gpu)
        self.tried = try_smaller(candidates, try_one, lambda: self.spent() > TIMING * self.asked.budget)
        self.timing.reading = self.tried[-1].pace.reading if self.timing.reads_once else 0.0
        return self.tried[-1].pace

    def fit(
        self, configs: Mapping[str, TrainConfig], snapshots: Mapping[str, ArmSnapshot], asked: Mapping[str, int]
    ) -> dict[str, Any]:
        """Return the number of seeds and epochs that fit, as stored in comparison.json.

        Args:
            asked: epochs of each arm.
        """
        self._reserve_compiling({name: snapshots[name].kinds for name in configs}, configs)
        longest = max(asked[name] for name in configs)

        def fit(paces: Mapping[str, Pace]) -> BudgetFit:
            return self._fit(paces, {name: asked[name] for name in paces})

        first = dict(list(configs.items())[:1])
        for pace in self.timing.paces(first).values():  # where even this one does not fit, the others are not timed
            try:
                fit(dict.fromkeys(first, pace))
            except BudgetError:
                fit(dict.fromkeys(configs, pace))
        self.timing.take_as_timed(configs, snapshots, lambda paces: fit(paces).is_all(self.asked, longest))
        paces = self.timing.paces(configs)
        if not paces:
            notes = "; ".join(map(str, self.timing.notes))
            raise BudgetError(f"the budget cannot be planned, as no arm could be timed: {notes}")
        epochs = {name: asked[name] for name in paces}
        found, longest = fit(paces), max(epochs.values())
        return {
            "seeds": found.seeds,
            "most": found.most,
            "longest": longest,
            "detail": "" if found.is_all(self.asked, longest) else found.detail,
            "seconds": found.seconds,
            "size": asdict(self.facts),
            "few": self._warn_of_few(found, paces, epochs),
            "longer": self._longer(paces, epochs),
        }

    def _reserve_compiling(self, kinds: Mapping[str, frozenset[str]], configs: Mapping[str, TrainConfig]) -> None:
        """Set aside the time in which kinds of blocks are compiled, each once."""
        self.compiling = min(self.timing.compiling(kinds, configs), MOST_COMPILED * self.asked.budget)

    def _fit(
        self, paces: Mapping[str, Pace], epochs: Mapping[str, int], asked: BudgetRequest | None = None
    ) -> BudgetFit:
        overhead = self.spent() + self.compiling + self.timing.reading
        return fit_budget(asked or self.asked, paces, epochs, spent=overhead)

    def _usual(self, paces: Mapping[str, Pace], epochs: Mapping[str, int], asked: BudgetRequest) -> int:
        """Return the number of epochs that fit with the named seeds, or else the usual number of seeds."""
        usual = asked if asked.named else replace(asked, seeds=USUAL_SEEDS, named=True)
        with suppress(BudgetError):
            return self._fit(paces, epochs, usual).most
        return 0

    def _warn_of_few(self, fit: BudgetFit, paces: Mapping[str, Pace], epochs: Mapping[str, int]) -> str:
        """Return a warning if runs will look under-trained, with the time that enough epochs take; else empty."""
        enough = min(ENOUGH, max(epochs.values()))
        if fit.most >= enough:
            return ""
        seconds = [paces[name].seconds(min(ENOUGH, asked)) for name, asked in epochs.items()] * fit.seeds
        needed = makespan(seconds * self.asked.folds, self.asked.slots) + self.spent()
        return (
            f"Arms will probably look under-trained: {count_of(fit.most, 'epoch')}, fewer than {enough}; "
            f"{count_of(fit.seeds, 'seed')} of {enough} epochs take about {say_duration(needed)}"
        )

    def _longer(self, paces: Mapping[str, Pace], epochs: Mapping[str, int]) -> list[dict[str, Any]]:
        """Describe what longer budgets would allow."""
        sizes = [(say_smaller(self.tried[0].config, one.config), one.pace) for one in self.tried]
        known = [
            (", ".join(words) or "the requested model and image size", dict.fromkeys(paces, pace))
            for words, pace in sizes
        ]
        known = [*known[:-1], (known[-1][0] if known else "", dict(paces))]
        longer: list[dict[str, Any]] = []
        for budget in (one for one in LONGER if one > self.asked.budget):
            asked = replace(self.asked, budget=budget)
            usual = [self._usual(each, epochs, asked) for _, each in known]
            enough = [one >= min(ENOUGH, max(epochs.values())) for one in usual]
            size, each = known[enough.index(True) if any(enough) else -1]
            with suppress(BudgetError):
                fit = self._fit(each, epochs, asked)
                longer.append({"budget": budget, "size": size, "seeds": fit.seeds, "epochs": fit.most})
        return longer


def say_budget(budget: float | None, fit: Mapping[str, Any] | None) -> str:
    """Describe what the budget allows; empty without a budget."""
    if budget is None or fit is None:
        return ""
    detail = fit.get("detail", fit.get("told"))  # "told" in files written before
    return f"{say_duration(budget)} allows {detail or 'all requested seeds and epochs'} (rule: {RULE})"


def say_outlook(fit: Mapping[str, Any] | None, detectable: Callable[[int], float | None]) -> tuple[str, ...]:
    """Describe whether runs will look under-trained, and what longer budgets would detect.

    Args:
        detectable: returns the smallest difference that will probably be found with so many seeds.
    """
    lines = [f"{fit['few']}."] if fit and fit.get("few") else []
    for other in fit.get("longer", ()) if fit else ():
        found = detectable(other["seeds"])
        parts = [other["size"]] if other["size"] else []
        parts += [f"{count_of(other['seeds'], 'seed')} of {count_of(other['epochs'], 'epoch')}"]
        parts += [f"differences of about {100 * found:.1f} points"] if found is not None and found <= 1 else []
        lines.append(f"{say_duration(other['budget'])} would be enough for {', '.join(parts)}.")
    return tuple(lines)
