"""Learning rate search for models of unknown families, before the run."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.source import Stream
from ..settings import TrainConfig, overlay
from ..settings.decisions import Decision, decide
from ..settings.facts import Facts, TriedRate
from ..settings.families import family_of, has_families
from ..settings.fitting import TRIED
from ..settings.overrides import names_of
from ..settings.sizes import steps_of_epoch
from ..tasks.opening import open_samples
from .parallel import local_device
from .resolve import resolve
from .trial import SEED, SHARE, prepare_ground, run_trial

RATES = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # relative to the recipe's
SHARE_OF_RUN = 0.01  # of the run's steps, for each trial
LEAST_STEPS = 20  # shorter trials say nothing about a rate
EPOCHS = 2  # epochs of a trial


def find_rate(
    config: TrainConfig, given: Mapping[str, Any], *, record: list[Decision] | None = None
) -> tuple[TrainConfig, list[str]]:
    """Search the learning rate of a model whose family has no measured one; return settings and a note.

    Five rates are trained on one part of the training samples and evaluated on another, which takes about 5% of the
    run's time. A rate given by the user is kept, and so is that of a run too short for trials.

    Args:
        given: settings given by the user, by dotted name.
        record: collects decisions.
    """
    if has_known_lr(config, given):
        return config, []
    device = local_device(config.engine.device)
    choice, data = open_samples(config.task, config.data)
    if (
        choice.kind.hosts.builds(config.model.name)
        or isinstance(data.train, Stream)
        or int(os.environ.get("WORLD_SIZE", "1")) > 1
    ):
        return config, [_untried(config)]
    resolve(config, choice, data, device, given=names_of(given))  # refuse invalid settings before trials
    resolved, ground = prepare_ground(config, choice, data, device)
    batch = resolved.optim.batch_size
    samples = min(len(data.train), config.data.train_limit or len(data.train))
    steps = int(SHARE_OF_RUN * resolved.schedule.epochs * steps_of_epoch(samples, batch))
    if steps < LEAST_STEPS:
        return config, [_untried(config)]
    limit = min(max(steps // EPOCHS, 1) * batch, int((1 - SHARE) * samples))
    resolved, ground = prepare_ground(config, choice, data, device, limit=limit)
    scores: dict[float, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for factor in RATES:
            rate = float(f"{resolved.optim.lr * factor:.3g}")
            tried = {"optim.lr": rate, "seed": SEED, "schedule.epochs": EPOCHS, "keep.evaluate_every": EPOCHS}
            trial_config = overlay(resolved, {**tried, "engine.compile": False, "schedule.patience": None})
            trial = run_trial(trial_config, ground, Path(folder) / "trial", device=device)
            if trial.score is not None:
                scores[rate] = trial.score
    if not scores:
        return config, [_untried(config)]
    better = max if ground.metric.larger_is_better else min
    best = better(scores, key=lambda rate: scores[rate])
    edge = " (at the edge of the range)" if best in (min(scores), max(scores)) else ""
    why = (
        f"no defaults for models like {config.model.name}: learning rate {best:g} was the best of {len(scores)} tried "
        f"for {EPOCHS} epochs on {limit:,} training samples{edge}"
    )
    config = decide(config, Facts(tried=TriedRate(best, batch, why)), TRIED, record=record)
    return config, [f"{why}; search longer with `saccade tune`, or set --lr"]


def has_known_lr(config: TrainConfig, given: Mapping[str, Any]) -> bool:
    """Whether the model's learning rate is known, so that none is searched."""
    known = not has_families(config.recipe) or family_of(config.recipe, config.model.name) is not None
    return known or "optim.lr" in given or config.model.checkpoint is not None or config.model.pretrained


def _untried(config: TrainConfig) -> str:
    return (
        f"no defaults for models like {config.model.name}: learning rate {config.optim.lr:g} is the recipe's and was "
        "not tuned for it; find one with `saccade tune`, or set --lr"
    )
