"""Rules on a run's place in a comparison: its seed and fold, and what all arms have alike."""

from .changes import overlay
from .decisions import Change, Rule, between
from .facts import Facts, known
from .schema import TrainConfig
from .strength import scale_augmentation_to_epochs


def _seeds(config: TrainConfig, facts: Facts) -> Change | None:
    run = known(facts.compared)
    if run.seed is None:
        return None
    place = {} if run.fold is None else {"data.fold": run.fold, "data.split_seed": config.data.split_seed + run.repeat}
    where = f"seed {run.seed}" + ("" if run.fold is None else f", fold {run.fold} of cut {run.repeat}")
    return Change({"seed": run.seed, **place}, f"{where} of the comparison")


def _validate_seldom(config: TrainConfig, facts: Facts) -> Change | None:
    run = known(facts.compared)
    if run.every is None:
        return None
    why = f"validation on {run.validated:,} samples after every epoch would take too long"
    return Change({"keep.evaluate_every": run.every}, why)


def _short_run(config: TrainConfig, facts: Facts) -> Change | None:
    longest = known(facts.compared).longest
    if longest is None:
        return None
    why = f"{longest} epochs; short runs train better with less augmentation, and all arms are augmented alike"
    return Change(between(config, scale_augmentation_to_epochs(config, longest)), why)


def _tune(config: TrainConfig, facts: Facts) -> Change | None:
    tuned = known(facts.compared).tuned
    if tuned is None:
        return None
    best = ", ".join(f"{name}={value}" for name, value in tuned.items())
    return Change(between(config, overlay(config, tuned)), f"best in short trials: {best}")


def _shortened(config: TrainConfig, facts: Facts) -> Change | None:
    epochs = known(facts.compared).epochs
    why = f"only {epochs} epochs fit, since runs took longer than planned"
    return None if epochs is None else Change({"schedule.epochs": epochs}, why)


COMPARED = (
    Rule("seeds", "you", ("compared",), _seeds),
    Rule("validate-seldom", "set", ("compared",), _validate_seldom),
    Rule("tune", "set", ("compared",), _tune),
    Rule("short-run-alike", "recipe", ("compared",), _short_run),
    Rule("shortened", "budget", ("compared",), _shortened),
)
