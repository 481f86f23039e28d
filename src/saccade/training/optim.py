"""Optimizers, learning rate schedule and weight averaging."""

import difflib
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class, get_optimizer_info, list_optimizers
from timm.optim._param_groups import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor, nn

from ..runs.state import piece_of
from ..settings import ConfigError, OptimConfig, ScheduleConfig
from ..settings.machine_rules import CAPTURABLE
from ..tasks import Task
from .muon import Muon

FUSED = ("adam", "adamw", "sgd", "nesterov", "momentum")


def build_optimizer(
    task: Task, config: OptimConfig, *, device: torch.device, capturable: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer of trainable parameters, with weight decay on matrices only.

    Args:
        capturable: whether steps are captured as CUDA graphs.
    """
    _check_name(config.name)
    options: dict[str, Any] = {"momentum": config.momentum}
    if config.betas is not None:
        _check_betas(config)
        options["betas"] = tuple(config.betas)
    if config.eps is not None:
        options["eps"] = config.eps
    if config.name in FUSED and not any(hasattr(p, "device_mesh") for p in task.parameters()):
        options["fused"] = True
    if capturable and config.name in CAPTURABLE:
        options["capturable"] = True
    groups = _groups(task, config)
    try:
        create: Any = partial(create_optimizer_v2, opt=config.name)
        if config.name in ("muon", "nmuon"):
            create = partial(Muon, nesterov=config.name == "nmuon")
        optimizer = create(groups, lr=scaled_lr(config), weight_decay=0.0, **options)
    except (ValueError, TypeError, AssertionError, ImportError) as error:  # raised by timm and PyTorch
        detail = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ConfigError(
            f"cannot create the optimizer optim.name = {config.name!r} with lr={scaled_lr(config):g}, {detail}: "
            f"{error}; change these settings of optim, or choose another optimizer"
        ) from error
    if capturable:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    return optimizer


def scaled_lr(config: OptimConfig) -> float:
    """Return the learning rate for the batch size."""
    return config.lr * config.batch_size / config.lr_batch if config.lr_batch else config.lr


def warmup_of(schedule: ScheduleConfig, steps_per_epoch: int) -> int:
    """Return the warm-up steps: a share of all as it is, a number of steps or epochs up to a fifth of all."""
    if schedule.warmup_steps is not None:
        return min(schedule.warmup_steps, schedule.epochs * steps_per_epoch // 5)
    if schedule.warmup_share is not None:
        return round(schedule.warmup_share * schedule.epochs * steps_per_epoch)
    return round(min(schedule.warmup, schedule.epochs / 5) * steps_per_epoch)


def rate_at(step: float, *, steps_per_epoch: int, peak: float, schedule: ScheduleConfig) -> float:
    """Return the learning rate of a step: linear warm-up (`warmup_of`), then decay to `min_lr`.

    The decay is a half cosine, polynomial, or by a factor of ten at given milestones. Steps of a shortened run may be
    fractional.
    """
    total, warmup = schedule.epochs * steps_per_epoch, warmup_of(schedule, steps_per_epoch)
    floor = min(schedule.min_lr, peak)
    if step < warmup:
        return schedule.warmup_lr + (peak - schedule.warmup_lr) * (step + 1) / (warmup + 1)
    done = min((step - warmup) / max(total - warmup, 1), 1.0)
    if schedule.curve == "steps":
        return max(peak * 0.1 ** sum(step >= fall * total for fall in schedule.falls), floor)
    if schedule.curve == "poly":
        return floor + (peak - floor) * (1 - done) ** schedule.power
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))


def set_rate(optimizer: torch.optim.Optimizer, rate: float, *, new_only: bool = False) -> None:
    """Set the learning rate of all groups, times each group's `lr_scale`.

    Args:
        rate: learning rate at a scale of one.
        new_only: freeze pretrained parameters.
    """
    for group in optimizer.param_groups:
        value = 0.0 if new_only and group.get("trained") else rate * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


class Average:
    """Exponential moving average of a model's parameters; buffers are not averaged.

    With sharded parameters every process averages its own shards.

    Args:
        decay: decay of the average; smaller in the first steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        names = {name for name, _ in model.named_parameters()}
        own = {name: p.detach() for name, p in model.state_dict(keep_vars=True).items() if name in names}
        self.whole = {name: p.clone() for name, p in own.items()}
        self.live = [piece_of(p)[0] for p in own.values()]  # these share memory with the sharded parameters
        self.averages = [piece_of(p)[0] for p in self.whole.values()]
        self.weight = torch.zeros((), device=self.live[0].device)  # weight of the current parameters

    def prepare(self, step: int) -> None:
        """Set the decay for the next step."""
        self.weight.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current parameters."""
        difference = torch._foreach_sub(self.live, self.averages)
        torch._foreach_mul_(difference, self.weight)
        torch._foreach_add_(self.averages, difference)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name."""
        return self.whole

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the averages into the model within a context."""
        kept = [p.clone() for p in self.live]
        with torch.no_grad():
            torch._foreach_copy_(self.live, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.live, kept)


def _check_name(name: str) -> None:
    """Refuse unknown optimizers and those that need second derivatives."""
    try:
        info = get_optimizer_info(_plain(name))
    except ValueError:
        near = difflib.get_close_matches(name, map(str, list_optimizers()), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; timm.optim.list_optimizers() lists them"
        raise ConfigError(f"optim.name = {name!r} is not an optimizer of timm{hint}") from None
    if info.second_order:
        raise ConfigError(
            f"optim.name = {name!r} needs second derivatives, which saccade does not compute in training; choose "
            "another optimizer"
        )


def _check_betas(config: OptimConfig) -> None:
    """Refuse a wrong number of betas; some optimizers only fail at their first step."""
    made = get_optimizer_class(_plain(config.name), bind_defaults=False)
    default = getattr(inspect.signature(made).parameters.get("betas"), "default", None)
    if isinstance(default, tuple) and config.betas is not None and len(default) != len(config.betas):
        raise ConfigError(
            f"optim.betas = {config.betas} was given; {config.name} takes {len(default)} values, such as "
            f"{list(default)}"
        )


def _plain(name: str) -> str:
    """Return an optimizer's name without timm's prefix `lookahead_`."""
    return name.lower().removeprefix("lookahead_")


def _groups(task: Task, config: OptimConfig) -> list[dict[str, Any]]:
    model: Any = task.model
    spare = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    if config.layer_decay is None:
        groups = param_groups_weight_decay(model, config.weight_decay, no_weight_decay_list=spare)
    else:
        if not hasattr(model, "group_matcher"):
            raise ValueError(
                f"optim.layer_decay was given, but {type(model).__name__} has no `group_matcher` that names its "
                "layers; remove optim.layer_decay"
            )
        groups = param_groups_layer_decay(
            model, config.weight_decay, no_weight_decay_list=spare, layer_decay=config.layer_decay
        )
    new: frozenset[str] | None = getattr(model, "new_parameters", None)
    if new is not None:
        fresh = {id(p) for name, p in model.named_parameters() if name in new}
        groups = _parted(groups, fresh, scale=config.new_scale)
    head: str | None = getattr(model, "classifier_prefix", None)
    if head is not None and config.new_scale != 1:
        fresh = {id(p) for name, p in model.named_parameters() if name.startswith(head)}
        groups = _parted(groups, fresh, scale=config.new_scale)
    known = {id(p) for group in groups for p in group["params"]}
    extra = nn.ParameterList([p for p in task.parameters() if p.requires_grad and id(p) not in known])
    if len(extra):
        groups += param_groups_weight_decay(extra, config.weight_decay)
    return [group for group in groups if group["params"]]


def _parted(groups: list[dict[str, Any]], new: set[int], *, scale: float) -> list[dict[str, Any]]:
    """Split groups into new parameters, with a scaled learning rate, and pretrained ones."""
    found = []
    for group in groups:
        fresh = [p for p in group["params"] if id(p) in new]
        kept = [p for p in group["params"] if id(p) not in new]
        found.append({**group, "params": kept, "trained": True})
        found.append({**group, "params": fresh, "lr_scale": scale})
    return found
