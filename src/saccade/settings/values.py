"""What a value may be: ranges of numbers, values as type hints want them, and refusals of others."""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin


class ConfigError(ValueError):
    """A setting that does not exist or does not take the value given."""


@dataclass(frozen=True)
class Range:
    """The numbers from one to another."""

    low: float  # the least
    high: float = math.inf  # the greatest; where that is infinity, `low` is 0
    above: bool = False  # leave out `low`
    below: bool = False  # leave out `high`
    endless: bool = False  # let infinity be one of them

    def holds(self, value: Any) -> bool:
        """Whether a number is one of these; what is no number is not."""
        if not self.low <= value <= self.high or (math.isinf(value) and not self.endless):
            return False
        return not (self.above and value == self.low) and not (self.below and value == self.high)

    def __str__(self) -> str:
        low, high = f"{self.low:.10g}", f"{self.high:.10g}"
        if math.isinf(self.high):
            least = "a positive number" if self.above else "zero or more"
            return least if not self.endless else f"{least}, or infinity"
        if self.above:
            return f"between {low} and {high}, both exclusive" if self.below else f"above {low} and at most {high}"
        return f"from {low} to {'below ' if self.below else ''}{high}"


@dataclass(frozen=True)
class Several:
    """Lists of numbers."""

    each: Range  # what every number may be
    lengths: tuple[int, ...] = ()  # how many there may be; empty: any number of them
    rising: bool = False  # whether the smaller one comes first

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether a list is one of these."""
        if not values or (self.lengths and len(values) not in self.lengths):
            return False
        return all(map(self.each.holds, values)) and not (self.rising and list(values) != sorted(values))

    def __str__(self) -> str:
        count = " or ".join(map(str, self.lengths))
        order = ", the smaller first" if self.rising else ""
        return f"a list of {f'{count} ' if count else ''}numbers, each {self.each}{order}"


POSITIVE, NOT_NEGATIVE = Range(0, above=True), Range(0)
SHARE, BELOW_ONE = Range(0, 1), Range(0, 1, below=True)
INSIDE, PORTION = Range(0, 1, above=True, below=True), Range(0, 1, above=True)
SEED, COUNT = Range(0, 2**31 - 1), Range(1, 2**31 - 1)


def require_choice(name: str, value: Any, allowed: Any) -> None:
    """Refuse an option's value that is none of those allowed: listed, or written as the option's type hint."""
    allowed = choices(allowed) if get_origin(allowed) in (Literal, Union, types.UnionType) else list(allowed)
    if value not in allowed:
        raise ValueError(f"{name}={value!r} was given; allowed are {', '.join(map(repr, allowed))}")


def choices(hint: Any) -> list[Any]:
    """Return the values that a type hint lists: those of its literals, and None."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return [value for arg in get_args(hint) for value in choices(arg)]
    return [None] if hint is type(None) else []


def from_none(value: Any) -> Any:
    """Return None for the word "none", which stands for it where None would be left out; anything else as it is."""
    return None if isinstance(value, str) and value == "none" else value


def require_number(name: str, value: float | None, low: float, high: float) -> None:
    """Refuse a flag's number that is not from one to another; None was not given."""
    allowed = Range(low, high)
    if value is not None and not allowed.holds(value):
        raise ValueError(f"{name} {value} was given; it must be {allowed}")


NO = object()


def try_value(value: Any, hint: Any) -> Any:
    """Return the value as the hint wants it, or NO."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return next((fitted for arg in args if (fitted := try_value(value, arg)) is not NO), NO)
    if origin is Literal:
        return value if any(value == arg and type(value) is type(arg) for arg in args) else NO
    if origin in (list, Sequence, tuple):
        if not isinstance(value, list | tuple) or (origin is tuple and len(value) != len(args)):
            return NO
        items = [try_value(item, args[0]) for item in value]
        return NO if any(item is NO for item in items) else items
    if origin is dict:
        if not isinstance(value, Mapping):
            return NO
        kinds = args or (Any, Any)
        pairs = [(try_value(name, kinds[0]), try_value(one, kinds[1])) for name, one in value.items()]
        return NO if any(part is NO for pair in pairs for part in pair) else dict(pairs)
    if hint is type(None):
        return None if value is None else NO
    if hint is float:
        return _read_float(value)
    if hint is int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return int(value) if whole and not isinstance(value, bool) else NO
    return value if type(value) is hint else NO


def _read_float(value: Any) -> Any:
    """YAML reads 1e-3 as a word; true is no number, and a whole number can be too large for one."""
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else NO
    except (ValueError, OverflowError):
        return NO


def say_hint(hint: Any) -> str:
    """Return a type hint in plain words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(say_hint(arg) for arg in args)
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin in (list, Sequence, tuple):
        return f"a list of {f'{len(args)} ' if origin is tuple else ''}{_plural(args[0])}"
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false", type(None): "null"}
    if origin is dict:
        return "a mapping of names to values"
    return names.get(hint) or f"{getattr(hint, '__name__', hint)}, which can only be given in Python"


def _plural(hint: Any) -> str:
    """Return the type hint of a list's items in plain words."""
    plurals = {float: "numbers", int: "whole numbers", str: "strings", bool: "booleans"}
    return plurals.get(hint) or f"values, each {say_hint(hint)}"


def other_words(hint: Any) -> list[str]:
    """Return what a type hint takes beside numbers and lists of them, in plain words."""
    args = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    return [say_hint(arg) for arg in args if arg not in (int, float) and get_origin(arg) is not list]


def fit_value(value: Any, hint: Any, name: str, *, source: str) -> Any:
    """Return a value as a type hint wants it; an error calls it by `name`, and where it is from by `source`."""
    fitted = try_value(value, hint)
    if fitted is NO:
        given = f"{short(repr(value))} ({type(value).__name__})"
        raise ConfigError(f"{at(source)}{name} = {given} was given; it takes {say_hint(hint)}")
    return fitted


def at(source: str) -> str:
    """Return the beginning of an error about values from a source; nothing of what the user gave."""
    return f"{source}: " if source else ""


def short(text: str) -> str:
    """Return a text cut to what a message has room for."""
    return text if len(text) <= 80 else f"{text[:77]}..."
