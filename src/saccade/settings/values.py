"""Refusals of values: choices and numbers out of range, and what a type hint takes in plain words."""

import types
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

LISTS, MAPPINGS = (list, tuple, Sequence, Collection, Iterable), (dict, Mapping, MutableMapping)


class ConfigError(ValueError):
    """An unknown setting, or a value that it does not accept."""


def require_choice(name: str, value: Any, allowed: Any) -> None:
    """Refuse an option's value that is not allowed, by a list or the option's type hint."""
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
    """Refuse a flag's number outside its range; None means not given."""
    if value is not None and not low <= value <= high:  # true of nan as well
        raise ValueError(f"{name} {value} was given; it must be from {low} to {high}")


def say_hint(hint: Any) -> str:
    """Return a type hint in plain words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(say_hint(arg) for arg in args)
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is Annotated:
        return say_hint(args[0])
    if origin in LISTS and args:
        several = origin is not tuple or args[-1] is ...
        same = all(arg == args[0] for arg in args if arg is not ...)
        kinds = _plural(args[0]) if same else f"values: {', '.join(map(say_hint, args))}"
        return f"a list of {'' if several else f'{len(args)} '}{kinds}"
    if hint in LISTS or origin in LISTS:
        return "a list"
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false", type(None): "null"}
    if origin in MAPPINGS or hint in MAPPINGS:
        return "a mapping of names to values"
    return names.get(hint) or f"{getattr(hint, '__name__', hint)}, which can only be given in Python"


def _plural(hint: Any) -> str:
    """Return the type hint of a list's items in plain words."""
    if get_origin(hint) is Annotated:
        return _plural(get_args(hint)[0])
    plurals = {float: "numbers", int: "whole numbers", str: "strings", bool: "booleans"}
    return plurals.get(hint) or f"values, each {say_hint(hint)}"


def at(source: str) -> str:
    """Return the beginning of an error about values from a source; nothing of what the user gave."""
    return f"{source}: " if source else ""


def short(text: str) -> str:
    """Return a text cut to what a message has room for."""
    return text if len(text) <= 80 else f"{text[:77]}..."
