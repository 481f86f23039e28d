"""What settings may be: pydantic types with ranges, groups of settings made of them, and refusals in plain words."""

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from numbers import Real
from typing import Annotated, Any, TypeVar, Union, dataclass_transform, get_args, get_origin

import pydantic
from annotated_types import GroupedMetadata, Interval, Len
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, SchemaError

from .values import LISTS, MAPPINGS, ConfigError, at, say_hint, short

GroupT = TypeVar("GroupT", bound=type[Any])
RULES = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
LOOSE = ConfigDict(arbitrary_types_allowed=True)
OUT_OF_RANGE = ("greater_than", "less_than", "finite_number", "too_short", "too_long", "value_error")


@dataclasses.dataclass(frozen=True)
class Items(GroupedMetadata):
    """Lists of numbers: how many there may be, any number of them if empty, and whether the smaller comes first."""

    lengths: tuple[int, ...] = ()
    rising: bool = False

    def __iter__(self) -> Iterator[Any]:
        yield Len(min(self.lengths, default=1), max(self.lengths, default=None))
        yield AfterValidator(self._check)
        yield ORDERED

    def _check(self, values: list[float]) -> list[float]:
        if (self.lengths and len(values) not in self.lengths) or (self.rising and values != sorted(values)):
            raise ValueError
        return values


def _accept(*kinds: type, but: type | tuple[type, ...] = ()) -> BeforeValidator:
    """Return a check against values of other types, of which pydantic would make one that fits."""

    def check(value: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, but):
            raise PydanticCustomError("wrong_type", "a value of another type")
        return value

    return BeforeValidator(check)


def _zero_or_more(value: float) -> float:
    if not value >= 0:  # true of nan as well
        raise ValueError
    return value


def _own(value: Any) -> Any:
    """Return numbers of numpy as Python's own, also those inside of lists and mappings: YAML has no others."""
    if isinstance(value, Mapping):
        return {name: _own(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_own, value))
    return value.tolist() if type(value).__module__ == "numpy" else value


# Last in an annotation, since the JSON Schema has what precedes them. A word such as 1e-3 may be a float, as in YAML.
NUMBER, WHOLE = _accept(Real, str, but=bool), _accept(Real, but=bool)
ORDERED = _accept(object, but=(Set, bytes))  # a set's order differs between processes
Positive = Annotated[float, Interval(gt=0), NUMBER]
NotNegative = Annotated[float, Interval(ge=0), NUMBER]
Share = Annotated[float, Interval(ge=0, le=1), NUMBER]
BelowOne = Annotated[float, Interval(ge=0, lt=1), NUMBER]
Inside = Annotated[float, Interval(gt=0, lt=1), NUMBER]
Portion = Annotated[float, Interval(gt=0, le=1), NUMBER]
Seed = Annotated[int, Interval(ge=0, le=2**31 - 1), WHOLE]
Count = Annotated[int, Interval(ge=1, le=2**31 - 1), WHOLE]
NotNegativeOrInfinite = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_zero_or_more), NUMBER]

Options = Annotated[dict[str, Any], AfterValidator(_own)]

STRICT = {bool: pydantic.StrictBool, int: Annotated[int, WHOLE], float: Annotated[float, NUMBER]}
ONLY_PYTHON = Annotated[Any, _accept()]  # of settings, which are text, nothing fits


def setting(default: Any, text: str, *, unset: str = "", unit: str = "") -> Any:
    """Return a field with what there is to know of it.

    Args:
        text: help, for flags, the JSON Schema and editors.
        unset: what holds where it is null, or what the default of its flag is called.
        unit: of its number.
    """
    more: Any = {name: words for name, words in (("unset", unset), ("unit", unit)) if words}
    if isinstance(default, list | dict):
        return Field(default_factory=default.copy, description=text, json_schema_extra=more)
    return Field(default=default, description=text, json_schema_extra=more)


@dataclass_transform(kw_only_default=True)
def group(prefix: str = "") -> Callable[[GroupT], GroupT]:
    """Return a decorator for a group of settings, whose names begin with a prefix: wrong values raise ConfigError."""

    def decorate(kind: GroupT) -> GroupT:
        made = pydantic.dataclasses.dataclass(kw_only=True, config=RULES)(kind)
        checked = made.__init__

        @functools.wraps(checked)
        def init(self: Any, **values: Any) -> None:
            try:
                checked(self, **values)
            except ValidationError as error:
                raise ConfigError(_refusal(made, prefix, values, error)) from None

        made.__init__ = init  # type: ignore[method-assign]
        return typing.cast(GroupT, made)

    return decorate


def _refusal(kind: type, prefix: str, values: dict[str, Any], error: ValidationError) -> str:
    """Return the first mistake of values in plain words: what was given, and what is allowed."""
    name = str(error.errors()[0]["loc"][0])
    mistakes = [one["type"] for one in error.errors() if one["loc"][0] == name]
    hints = typing.get_type_hints(kind, include_extras=True)
    if name not in hints:
        return f"unknown setting {prefix}{name}; choose from {', '.join(f'{prefix}{known}' for known in hints)}"
    value, hint = values[name], hints[name]
    if dataclasses.is_dataclass(hint):
        return _refusal_in_group(hint, f"{prefix}{name}", value)
    allowed = next(filter(None, map(say_range, leaves_of(hint))), "")
    if allowed and any(one.startswith(OUT_OF_RANGE) for one in mistakes):
        others = [say_hint(leaf) for leaf in leaves_of(hint) if not say_range(leaf)]
        return f"{prefix}{name} = {short(str(value))} was given; it must be {', or '.join([allowed, *others])}"
    return f"{prefix}{name} = {short(repr(value))} ({type(value).__name__}) was given; it takes {say_hint(hint)}"


def _refusal_in_group(kind: Any, name: str, value: Any) -> str:
    """Return the first mistake of what was given for a whole group."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        try:
            kind(**value)
        except ConfigError as error:
            return str(error)
    example = next(iter(typing.get_type_hints(kind)))
    return f"{name} = {short(repr(value))} was given; it is a group of settings: name one in it, e.g. {name}.{example}"


def fit_value(value: Any, hint: Any, name: str, *, source: str) -> Any:
    """Return a value as a type hint wants it; an error calls it by `name`, and where it is from by `source`."""
    try:
        fitted = _adapter(hint).validate_python(value)
    except ValidationError:
        given = f"{short(repr(value))} ({type(value).__name__})"
        raise ConfigError(f"{at(source)}{name} = {given} was given; it takes {say_hint(hint)}") from None
    return list(fitted) if isinstance(fitted, tuple) else fitted


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(hint)
    except TypeError:  # what annotates the type has no hash
        return _cached_adapter.__wrapped__(hint)


@functools.cache
def _cached_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_strictly(hint), config=LOOSE)


def _strictly(hint: Any) -> Any:
    """Return a type hint by which words and numbers do not stand for each other, nor for true and false."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_strictly(args[0]), *args[1:])]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_strictly, args))
    if origin in (*LISTS, *MAPPINGS) and args:
        origin = Sequence if origin in (Collection, Iterable) else origin
        inside = tuple(one if one is ... else _strictly(one) for one in args)
        return origin[inside] if origin in MAPPINGS else Annotated[origin[inside], ORDERED]
    if hint in LISTS or origin in LISTS:
        return Annotated[list[Any], ORDERED]
    if isinstance(hint, type) and hint in STRICT:
        return STRICT[hint]
    return hint if _is_known(hint) else ONLY_PYTHON


def _is_known(hint: Any) -> bool:
    """Whether pydantic can check values against a type."""
    try:
        return TypeAdapter(hint, config=LOOSE).pydantic_complete
    except (pydantic.PydanticUserError, SchemaError, NameError, TypeError):  # protocols, typed dictionaries and others
        return False


def leaves_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a union takes; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def range_of(hint: Any) -> Interval | Items | None:
    """Return the range in a type, if it has one."""
    found = (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Interval | Items))
    return next(found, None)


def say_range(hint: Any) -> str:
    """Return what a type allows of numbers in plain words; nothing if it has no range."""
    allowed = range_of(hint)
    if isinstance(allowed, Items):
        count = " or ".join(map(str, allowed.lengths))
        order = ", the smaller first" if allowed.rising else ""
        return (
            f"a list of {f'{count} ' if count else ''}numbers, each {say_range(get_args(get_args(hint)[0])[0])}{order}"
        )
    if hint == NotNegativeOrInfinite:
        return "zero or more, or infinity"
    return "" if allowed is None else say_interval(allowed)


def say_interval(allowed: Interval) -> str:
    """Return an interval in plain words."""
    low, above = (allowed.gt, True) if allowed.ge is None else (allowed.ge, False)
    high, below = (allowed.lt, True) if allowed.le is None else (allowed.le, False)
    if high is None:
        return "a positive number" if above else "zero or more"
    first, last = f"{low:.10g}", f"{high:.10g}"
    if above:
        return f"between {first} and {last}, both exclusive" if below else f"above {first} and at most {last}"
    return f"from {first} to {'below ' if below else ''}{last}"
