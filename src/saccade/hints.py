"""Values as type hints want them, and hints in plain words."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

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
        return dict(value) if isinstance(value, Mapping) else NO
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
        return f"a list of {f'{len(args)} times ' if origin is tuple else ''}{say_hint(args[0])}"
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", type(None): "null"}
    if origin is dict:
        return "names with values"
    return names.get(hint) or f"{getattr(hint, '__name__', hint)}, which only Python code can give"
