"""Search learning rate, weight decay and augmentation strength within a time budget."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import rich.console

from ..data.open import Data
from ..data.source import Stream
from ..runs.run import RunError, hold, require_apart
from ..settings import ConfigError, TrainConfig
from ..settings.overrides import ADDED, names_of
from ..support.durations import parse_duration, say_duration
from ..support.files import write_text
from ..support.wording import count_of
from ..tasks.opening import TaskChoice, open_samples
from ..training.engine import free_memory, torch_settings
from ..training.identity import starts_from
from ..training.loop import Interrupted
from ..training.pace import Pace, measure_pace
from ..training.parallel import local_device
from ..training.recipes import configure, gather_settings
from ..training.trial import prepare_ground, teacher_of
from .halving import Rung, describe_rungs
from .report import render_report
from .result import Tuned, recipe_text, training_command
from .search import Attempt, TuningTarget, best_of, edges_of, fit_rungs, run_search
from .space import Axis, candidates, find_axes, format_value, settings_of
from .store import Store

RESERVE, MIN_RESERVE = 0.02, 4.0  # share of the budget, and least seconds, kept for writing the result
EPOCHS = 30  # epochs over all trials that have to fit; of larger datasets a part is used
AGAIN = 0.1  # largest share of the time for a second measurement
BATCHES = 8  # least batches of such a part


def tune(
    data: str | None = None,
    *,
    budget: str | float = "10m",
    task: str | None = None,
    model: str | None = None,
    plugins: Sequence[str] = (),
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    img_size: int | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    workers: int | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    since: float | None = None,
) -> Tuned:
    """Search settings by successive halving on a part of the training samples.

    Validation samples are not used. Given settings are not searched. An interrupted search can be called again:
    finished trials are kept, and an unfinished one is resumed.

    Args:
        data: as for `train`.
        budget: time budget, such as "10m", including start-up.
        task: as for `train`.
        model: as for `train`.
        plugins: as for `train`.
        recipe: initial recipe; its `grid`, if any, is the search space.
        epochs: epochs of the final run; trials are shorter.
        batch_size: batch size of the run.
        lr: learning rate of the run, which is then not searched.
        img_size: side of the images.
        out: folder of the search; default: one under `runs`, named by the request.
        device: cpu, cuda, cuda:1, ...; default: a GPU if there is one.
        workers: processes that read files.
        settings: other settings by dotted name, which are not searched.
        overwrite: replace another search in the folder.
        quiet: print nothing.
        since: start of the budget, by `time.monotonic`; default: now.

    Returns:
        The result, which is also written to the folder as tuned.yaml, result.json and report.html.
    """
    since = time.monotonic() if since is None else since
    seconds = parse_duration(budget)
    given = gather_settings(
        settings,
        data=data,
        task=task,
        model=model,
        plugins=plugins,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        img_size=img_size,
        device=device,
        workers=workers,
    )
    config = configure(recipe, given)
    request = _request(config, given, seconds)
    path = Path(out or Path("runs") / f"tune-{Path(config.model.name).name}-{_digest(request)}").expanduser()
    require_apart(path, config.data)
    console = rich.console.Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False, markup=False)
    store = Store(path)
    store.make()
    try:
        with hold(path / ".lock", wait=0.0):
            known = store.begin(request, overwrite=overwrite)
            search = _Search(config, given, store, known, request, since=since, seconds=seconds, console=console)
            return search.run()
    except Interrupted as stopped:  # the whole search is resumed
        raise Interrupted(stopped.number, path) from None


class _Search:
    """A running search."""

    def __init__(
        self,
        config: TrainConfig,
        given: Mapping[str, Any],
        store: Store,
        known: Mapping[str, Any],
        request: Mapping[str, Any],
        *,
        since: float,
        seconds: float,
        console: rich.console.Console,
    ) -> None:
        self.config, self.given, self.store, self.request, self.console = config, given, store, request, console
        self.since, self.seconds, self.before = since, seconds, float(known.get("spent", 0.0))
        seconds_used = max(self.before, store.seconds_used()) if known else 0.0
        self.until = since + seconds - max(RESERVE * seconds, min(MIN_RESERVE, 0.1 * seconds)) - seconds_used
        self.known = known
        self.device = local_device(config.engine.device)

    def run(self) -> Tuned:
        """Run the search and write its result."""
        choice, data = open_samples(self.config.task, self.config.data)
        tried_on = _tried_on(self.config, choice, data) | teacher_of(self.config, choice, data, self.device)
        self._refuse_others(tried_on)
        target, axes = self._target(choice, data, limit=self.known.get("limit"))
        if self.known:
            limit, rungs = self.known.get("limit"), [Rung(*one) for one in self.known["rungs"]]
        else:
            limit, rungs, target = self._plan(choice, data, target, axes)
            planned = [[rung.count, rung.epochs] for rung in rungs]
            self.store.decide(self.request, limit=limit, rungs=planned, tried_on=tried_on)
        chosen = candidates(axes, rungs[0].count)
        self._say_plan(rungs, axes, target)
        say = self.console.print
        attempts = run_search([target], chosen, rungs, self.store, device=self.device, until=self.until, say=say)
        best = best_of(attempts, target.name, larger=target.ground.metric.larger_is_better)
        if best is None:
            raise ConfigError(_nothing(attempts, self.seconds))
        return self._write(target, axes, rungs, attempts, best)

    def _refuse_others(self, tried_on: Mapping[str, str]) -> None:
        """Refuse to resume trials with other samples, weights or teachers; earlier versions did not record these."""
        recorded = self.store.tried_on
        other = [what for what, was in recorded.items() if tried_on.get(what) != was]
        if other and self.store.trials:
            raise RunError(
                f"{' and '.join(other)} changed since the search in {self.store.path} was started, so its trials are "
                "not valid any more. Name another folder with --out, or restore what changed"
            )

    def _target(self, choice: TaskChoice, data: Data, *, limit: int | None) -> tuple[TuningTarget, tuple[Axis, ...]]:
        given = names_of(self.given)
        resolved, ground = prepare_ground(self.config, choice, data, self.device, limit=limit, given=given)
        axes = find_axes(self.config, resolved, given)
        if not axes:
            raise ConfigError(
                "nothing is left to search: learning rate, weight decay and augmentation were given, or the recipe "
                "does not use them; leave one of them open, or give a recipe with a grid (docs/tuning.md)"
            )
        return TuningTarget(resolved.model.name, resolved, ground), axes

    def _plan(
        self, choice: TaskChoice, data: Data, target: TuningTarget, axes: Sequence[Axis]
    ) -> tuple[int | None, list[Rung], TuningTarget]:
        """Return the number of training samples, the rungs and the trial setup."""
        pace = self._pace(target)
        left, limit = self.until - time.monotonic(), None
        epoch = pace.seconds(2) - pace.seconds(1)
        size = target.config.optim.batch_size
        if EPOCHS * epoch > left and not isinstance(target.ground.data.train, Stream):
            samples = len(target.ground.data.train)
            limit = min(max(int(samples * left / (EPOCHS * epoch)), BATCHES * size), samples)
            if limit < samples:
                target, _ = self._target(choice, data, limit=limit)
                share = limit / samples
                steps = max(round(pace.steps * share), 1)
                pace = Pace(pace.startup, pace.step, pace.validation * share, steps, pace.every, pace.how, pace.took)
        rungs = fit_rungs(axes, left, pace, most=target.config.schedule.epochs, budget=self.seconds)
        return limit, rungs, target

    def _pace(self, target: TuningTarget) -> Pace:
        config = target.trial_config({}, target.config.schedule.epochs)
        timed = config, target.ground.choice, target.ground.data, self.device
        with torch_settings(config, self.device):
            found = measure_pace(*timed)
            if found.took < AGAIN * (self.until - time.monotonic()):  # the first measurement includes loading libraries
                found = measure_pace(*timed)
        free_memory()
        return found

    def _say_plan(self, rungs: Sequence[Rung], axes: Sequence[Axis], target: TuningTarget) -> None:
        train, held = target.ground.data.train, target.ground.data.val
        count = "a stream of" if isinstance(train, Stream) else f"{len(train):,}"
        self.console.print(
            f"tuning {', '.join(axis.words for axis in axes)} of {target.name} on {count} training samples, scored on "
            f"{len(held):,} held-out ones (the validation split is not used); candidates: {describe_rungs(rungs)}"
        )

    def _write(
        self,
        target: TuningTarget,
        axes: Sequence[Axis],
        rungs: Sequence[Rung],
        attempts: Sequence[Attempt],
        best: Attempt,
    ) -> Tuned:
        metric = target.ground.metric
        own = [one.trial.score for one in attempts if one.rung == best.rung and _is_own(one, axes)]
        edges = edges_of(axes, attempts, best.values)
        found = settings_of(best.values, target.config)
        seconds = time.monotonic() - self.since + max(self.before, 0.0)
        assert best.trial.score is not None
        tuned = Tuned(
            path=self.store.path,
            recipe=self.store.recipe,
            settings=found,
            score=best.trial.score,
            own_score=next((score for score in own if score is not None), None),
            metric=metric.name,
            edges=edges,
            trials=len(attempts),
            seconds=seconds,
        )
        write_text(self.store.recipe, recipe_text(self.given, self.config, target.config, tuned, best, metric))
        write_text(self.store.result, json.dumps(_as_json(tuned, axes, rungs, attempts), indent=1, ensure_ascii=False))
        write_text(self.store.report, render_report(tuned, target, axes, rungs, attempts, best))
        self._say_found(tuned, axes, best, target)
        return tuned

    def _say_found(self, tuned: Tuned, axes: Sequence[Axis], best: Attempt, target: TuningTarget) -> None:
        metric = target.ground.metric
        values = ", ".join(f"{axis.words} {format_value(best.values[axis.name])}" for axis in axes)
        own = "" if tuned.own_score is None else f", with the recipe's own settings {metric.show(tuned.own_score)}"
        lines = [
            f"best of {count_of(tuned.trials, 'trial')}: {values}; {metric.words} {metric.show(tuned.score)} after "
            f"{count_of(best.epochs, 'epoch')}{own}"
        ]
        lines += [edge_text(axis, best.values[axis.name], tuned) for axis in axes if axis.name in tuned.edges]
        lines += [
            f"took {say_duration(tuned.seconds)}; written: {tuned.recipe} and {self.store.report}",
            f"train with it: {training_command(self.given, tuned.recipe)}",
        ]
        for line in lines:
            self.console.print(line)


def _tried_on(config: TrainConfig, choice: TaskChoice, data: Data) -> dict[str, str]:
    """Return the fingerprint of the trials' samples and initial weights."""
    train = data.train
    found = {} if isinstance(train, Stream) else {"the training samples": train.fingerprint()}
    return found | starts_from(replace(config.model, name=choice.kind.hosts.find_model(config.model.name)), choice)


def edge_text(axis: Axis, value: Any, tuned: Tuned) -> str:
    """Return advice on a best value at the edge of its range."""
    return (
        f"the best {axis.words}, {format_value(value)}, is the {tuned.edges[axis.name]} that was tried; a better "
        f"value may lie beyond it: continue with saccade tune ... --recipe {tuned.recipe}"
    )


def _is_own(attempt: Attempt, axes: Sequence[Axis]) -> bool:
    return all(attempt.values[axis.name] == axis.own for axis in axes)


def _nothing(attempts: Sequence[Attempt], seconds: float) -> str:
    reasons = "; ".join(dict.fromkeys(one.trial.failed for one in attempts))
    if reasons:
        return f"no trial finished with a score: {reasons}"
    return f"no trial finished within {say_duration(seconds)}; run again with a larger budget to continue"


def _request(config: TrainConfig, given: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the request as JSON values, without what depends on the machine."""
    given = {**given, "model.plugins": config.model.plugins} if ADDED in given else given
    aside = ("data.workers", ADDED)
    kept = {name: value for name, value in given.items() if not name.startswith("engine.") and name not in aside}
    return json.loads(json.dumps({"recipe": config.recipe, "settings": kept, "budget": seconds}))


def _digest(request: Mapping[str, Any]) -> str:
    named = {name: value for name, value in request.items() if name != "budget"}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]


def _as_json(tuned: Tuned, axes: Sequence[Axis], rungs: Sequence[Rung], attempts: Sequence[Attempt]) -> dict[str, Any]:
    return {
        "format": 1,
        **{name: str(value) if isinstance(value, Path) else value for name, value in asdict(tuned).items()},
        "axes": [asdict(axis) for axis in axes],
        "rungs": [asdict(rung) for rung in rungs],
        "attempts": [asdict(attempt) for attempt in attempts],
    }
