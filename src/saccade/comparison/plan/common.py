"""Settings that all arms of a comparison share, and those that each arm adds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from ...runs.run import RunError
from ...settings import ConfigError, TrainConfig
from ...settings.compared import COMPARED
from ...settings.decisions import Decision, decide, put
from ...settings.facts import ComparedFacts, Facts, TimeFacts
from ...settings.fitting import TIMED
from ...settings.named import name_of
from ...settings.overrides import dotted, merge
from ...settings.strength import SAY_STRENGTH
from ...training.recipes import configure, default_recipe
from ...training.resolve import resolve
from ...training.unread import Situation, unread
from .arms import Arm, changed
from .request import Request
from .snapshot import ArmSnapshot, DataCache, inspect_arm

REFERENCE = "reference"  # in a comparison's record: what its arms add to


class ArmConfigs(dict[str, TrainConfig]):
    """Settings of each arm by its name.

    Attributes:
        records: who decided what, of each arm.
    """

    def __init__(self, arms: Sequence[Arm], recipe: str | None, shared: Mapping[str, Any]) -> None:
        self.records: dict[str, list[Decision]] = {arm.name: [] for arm in arms}
        super().__init__({arm.name: arm.configure(recipe, shared, record=self.records[arm.name]) for arm in arms})

    def adopt(self, name: str, decisions: Sequence[Decision]) -> None:
        """Change settings of an arm as was decided when it was resolved."""
        self[name] = put(self[name], {one.setting: one.value for one in decisions})
        self.records[name] += decisions

    def decide(self, name: str, **facts: Any) -> None:
        """Change settings of an arm by the rules on its place in the comparison."""
        compared = Facts(compared=ComparedFacts(**facts))
        self[name] = decide(self[name], compared, COMPARED, record=self.records[name])

    def fit(self, name: str, time: TimeFacts, *, without: Sequence[str] = ()) -> None:
        """Change settings of an arm by the rules that fit a time budget."""
        self[name] = decide(self[name], Facts(time=time), TIMED, record=self.records[name], without=without)


def arm_configs(request: Request) -> ArmConfigs:
    """Return the settings of each arm."""
    arms, shared = request.parsed_arms, request.shared
    if any("optim.lr" in arm.settings for arm in arms):  # then no arm's batches or rate are fitted to the set
        shared = {"optim.least_steps": None, **shared}
    if any(f"augment.{name}" in arm.settings for arm in arms for name in SAY_STRENGTH):
        shared = {"augment.full_epochs": None, **shared}
    if request.folds is not None:
        shared = {**shared, "data.folds": request.folds}
    return ArmConfigs(arms, request.recipe, shared)


def taken_off(request: Request) -> list[str]:
    """Return the plug-ins of the common recipe, which only arms that name them use."""
    shared = dotted(request.shared)
    if all(arm.recipe is not None for arm in request.parsed_arms) or "model.plugins" in shared:
        return []
    return configure(request.recipe or default_recipe(shared), shared).model.plugins


def say_common(request: Request) -> str:
    """Describe the settings that arms add theirs to."""
    shared = dotted(request.shared)
    config = configure(request.recipe or default_recipe(shared), shared, bare=True)
    plugins = ", ".join(config.model.plugins) or "none"
    common = f"the recipe {config.recipe} with the model {config.model.name} and the plug-ins: {plugins}"
    if own := taken_off(request):
        common += f" (without the recipe's own, {', '.join(own)}: an arm that names it adds it)"
    return f"Each arm adds what it names to {common}."


def count_in_epochs(configs: ArmConfigs, cache: DataCache, device: torch.device) -> None:
    """Convert the length of arms whose recipe counts steps to epochs."""
    for name, config in configs.items():
        if config.schedule.steps is None:
            continue
        with suppress(Exception):  # whatever is wrong with an arm is said where it is built
            record: list[Decision] = []
            resolve(config, *cache.open(config), device, record=record)
            configs.adopt(name, [one for one in record if one.rule == "epochs-of-steps"])


def refuse_earlier(request: Request, configs: Mapping[str, TrainConfig], record: Mapping[str, Any]) -> None:
    """Refuse to resume a comparison whose arms resolved to other settings in an earlier version."""
    if not record or REFERENCE in record:
        return
    changed = [arm.name for arm in request.parsed_arms if _means_other(arm, request, configs[arm.name])]
    if changed:
        raise RunError(
            f"{request.folder} was started by an earlier version, which trained {', '.join(changed)} with other "
            "settings; choose another directory with --out, or replace the comparison with --overwrite"
        )


def _means_other(arm: Arm, request: Request, config: TrainConfig) -> bool:
    """Whether an earlier version trained an arm with other settings.

    It put a recipe's own plug-ins on every arm, took options of a task or a head for all of them, and counted steps by
    repeated images.
    """
    given = {**request.shared, **arm.settings}
    named = (
        given.get("task", config.task) == config.task
        and given.get("model.head", config.model.head) == config.model.head
    )
    options = given.get("model.options") == merge(request.shared, arm.settings).get("model.options")
    plugins = arm.recipe is None and bool(taken_off(request))
    return plugins or not named or not options or config.schedule.steps is not None


def refuse_unread(
    request: Request,
    configs: Mapping[str, TrainConfig],
    cache: DataCache,
    device: torch.device,
    *,
    accepted: Collection[str] = (),
) -> None:
    """Refuse given settings that are unused: an arm's own by that arm, common ones by all arms.

    Args:
        accepted: arms that the comparison already has; only others are checked, and no common settings.
    """
    given = dotted(request.shared)
    if request.typed is not None:
        given = {name: value for name, value in given.items() if name in request.typed}
    typed = () if accepted else tuple(_leaves(given))
    shared: list[dict[str, str]] = []
    for arm in request.parsed_arms:
        if arm.name in accepted:
            continue
        config = configs[arm.name]
        try:
            opened = cache.open(config)
            resolved, _ = resolve(config, *opened, device)
        except Exception:  # whatever is wrong with an arm is said where it is built
            continue
        situation = Situation(config, resolved, *opened, device)
        own = [*_leaves(arm.settings), *(f"model.plugins.{name_of(text)}" for text in arm.plugins)]
        if found := unread(own, situation):
            raise ConfigError(f"arm {arm.name!r}: {'; '.join(found.values())}")
        shared.append(unread([name for name in typed if name not in own], situation))
    idle = [name for name in (shared[0] if shared else ()) if all(name in one for one in shared)]
    if idle:
        raise ConfigError("; ".join(shared[0][name] for name in idle))


def _leaves(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of settings, with an own name for each option of the model."""
    for name, value in dotted(given).items():
        if name == "model.options" and isinstance(value, Mapping):
            yield from (f"{name}.{option}" for option in value)
        else:
            yield name


def inspect_arms(
    configs: Mapping[str, TrainConfig], reference: str, cache: DataCache, device: torch.device
) -> tuple[dict[str, ArmSnapshot], dict[str, str]]:
    """Build arms; return those that could be built, and the errors of others. Refuse arms that cannot be compared."""
    snapshots: dict[str, ArmSnapshot] = {}
    failed: dict[str, str] = {}
    for name, config in configs.items():
        try:
            snapshots[name] = inspect_arm(config, cache, device)
        except Exception as error:  # whatever an arm's model or plug-in does, the others can be compared
            failed[name] = str(error) or type(error).__name__
    if not snapshots:
        raise ConfigError(f"no arm can be built; {reference}: {failed[reference]}")
    _refuse_other_validation(snapshots.get(reference) or next(iter(snapshots.values())), snapshots, reference)
    return snapshots, failed


def _refuse_other_validation(base: ArmSnapshot, snapshots: Mapping[str, ArmSnapshot], reference: str) -> None:
    """Refuse arms whose validation samples differ from the reference's."""
    for name, one in snapshots.items():
        if one.val != base.val:
            settings = [n for n in changed(base.config, one.config) if n.startswith(("data.", "task"))]
            raise ConfigError(
                f"arm {name!r} is validated on different samples than {reference!r} ({one.val.count:,} samples with "
                f"fingerprint {one.val.fingerprint[:12]} against {base.val.count:,} with "
                f"{base.val.fingerprint[:12]}), because of {', '.join(settings) or 'its data'}; only predictions on "
                "the same samples can be compared. Change only the training samples, or run two comparisons"
            )
