"""The search space: values of a few settings, around the recipe's own or from its `grid`."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ..settings import ConfigError, TrainConfig, flatten, overlay
from ..settings.strength import strength_settings
from ..support.wording import is_number
from ..training.recipes import SHORT_FLAGS, grid_of

RATE, DECAY, STRENGTH = "optim.lr", "optim.weight_decay", "augment"  # the last is an alias of several settings
RATES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # relative to the recipe's
DECAYS = (0.2, 1, 4)
DECAYS_FROM_NONE = (0.0, 0.01, 0.1)
STRENGTHS = (0.0, 0.5, 1, 1.5)
MAX_COMBINATIONS = 4096  # most combinations
WORDS = {RATE: "learning rate", DECAY: "weight decay", STRENGTH: "strength of augmentation"}

Values = Mapping[str, Any]  # a candidate's value for each axis


@dataclass(frozen=True)
class Axis:
    """A setting and its candidate values."""

    name: str  # dotted name, or `augment` for augmentation strength relative to the recipe's
    values: tuple[Any, ...]  # sorted if they are numbers
    own: Any  # the recipe's value

    @property
    def words(self) -> str:
        """Name for pages and messages."""
        return WORDS.get(self.name, self.name)

    @property
    def ordered(self) -> bool:
        """Whether values are ordered."""
        return len(self.values) > 1 and all(isinstance(v, int | float) and type(v) is not bool for v in self.values)

    def edge(self, value: Any) -> str:
        """Return "lowest" or "highest" for a value at the edge of the range, else nothing."""
        if not self.ordered or (self.name == STRENGTH and value == 0):  # zero strength has no lower neighbour
            return ""
        return "lowest" if value == self.values[0] else "highest" if value == self.values[-1] else ""


def find_axes(config: TrainConfig, resolved: TrainConfig, fixed: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Return the axes for settings before and after resolving; `fixed` ones are not searched."""
    grid = grid_of(config)
    if grid is None:
        return default_axes(resolved, fixed)
    return read_grid(grid, resolved, source=f"recipe {config.recipe}", fixed=fixed)


def default_axes(config: TrainConfig, fixed: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Return axes of learning rate, weight decay and augmentation strength, except fixed ones."""
    rate, decay = config.optim.lr, config.optim.weight_decay
    axes = [Axis(RATE, tuple(_round(rate * factor) for factor in RATES), rate)]
    decays = tuple(_round(decay * factor) for factor in DECAYS) if decay else DECAYS_FROM_NONE
    axes.append(Axis(DECAY, decays, decay))
    none, some = (strength_settings(config.augment, strength) for strength in (0.0, 1.0))
    if none != some and not any(name.startswith("augment.") for name in fixed):
        axes.append(Axis(STRENGTH, STRENGTHS, 1))
    return tuple(axis for axis in axes if axis.name not in fixed)


def read_grid(grid: Any, config: TrainConfig, *, source: str, fixed: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Return the axes of a recipe's `grid`: lists of values by dotted or short name.

    Args:
        config: resolved settings, against which values are checked.
        source: the recipe's name in errors.
        fixed: settings given by the user, which are not searched.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise ConfigError(
            f"{source}: grid = {grid!r} was given; it must be a mapping of names to lists, e.g. grid: {{lr: [1e-4, "
            "1e-3]}"
        )
    axes, known = [], flatten(config)
    for given, values in _flat(grid).items():
        name = SHORT_FLAGS.get(given, given)
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{source}: grid.{given} = {values!r} was given; it must be a list of values to try")
        read = tuple(_read(value) for value in values)
        if name != STRENGTH:
            for value in read:
                overlay(config, {name: value}, source=f"{source}, grid")
        elif not all(isinstance(v, int | float) and v >= 0 for v in read):
            raise ConfigError(
                f"{source}: grid.augment = {values!r} was given; strengths must be 0 or more; 1 is the recipe's"
            )
        ordered = sorted(read) if all(isinstance(v, int | float) for v in read) else read
        if name not in fixed:
            each = tuple({repr(value): value for value in ordered}.values())
            axes.append(Axis(name, each, 1 if name == STRENGTH else known.get(name)))
    return tuple(axes)


def format_value(value: Any) -> str:
    """Format a value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(values: Values, config: TrainConfig) -> dict[str, Any]:
    """Return a candidate's settings by dotted name."""
    found = {name: value for name, value in values.items() if name != STRENGTH}
    if STRENGTH in values:
        found |= strength_settings(config.augment, values[STRENGTH])
    return found


def candidates(axes: Sequence[Axis], count: int) -> list[dict[str, Any]]:
    """Return combinations to try: the recipe's own, then other learning rates alone, then others."""
    own = {axis.name: axis.own for axis in axes}
    chosen = [own] if all(axis.own in axis.values for axis in axes) else []
    centre = {axis.name: axis.own if axis.own in axis.values else axis.values[len(axis.values) // 2] for axis in axes}
    first = axes[0]
    chosen += [{**centre, first.name: value} for value in _from_middle(first)]
    chosen = list({repr(one): one for one in chosen}.values())  # values may be unhashable
    draw = random.Random(0)
    if prod(len(axis.values) for axis in axes) <= MAX_COMBINATIONS:
        rest = [dict(zip(own, values, strict=True)) for values in product(*(axis.values for axis in axes))]
        rest = [one for one in rest if one not in chosen]
        draw.shuffle(rest)
    else:
        rest = [{axis.name: draw.choice(axis.values) for axis in axes} for _ in range(count)]
    return [*chosen, *rest][:count]


def _from_middle(axis: Axis) -> list[Any]:
    """Return an axis' values, nearest to the recipe's first."""
    middle = axis.values.index(axis.own) if axis.own in axis.values else len(axis.values) // 2
    return sorted(axis.values, key=lambda value: abs(axis.values.index(value) - middle))


def _flat(grid: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in grid.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _read(value: Any) -> Any:
    """Normalise a value: YAML reads 1e-4 as text, and lists are not hashable."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if isinstance(value, str) and is_number(value) else value


def _round(value: float) -> float:
    return float(f"{value:.3g}")
