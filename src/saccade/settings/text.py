"""Settings as text: safe YAML that also reads numbers such as 1e-3, and `name=value`."""

import dataclasses
import re
import warnings
from copy import deepcopy
from functools import lru_cache
from typing import Any, NamedTuple

import yaml

from ..support.wording import is_number
from .values import ConfigError, short

TEXT_CHARS, VALUES = 2**20, 100_000  # of a text of settings
INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
WHOLE = r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)\Z"
BROKEN = r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?\Z|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"


class Retired(NamedTuple):
    """A removed setting that earlier versions wrote."""

    default: Any  # that it had last
    now: str  # what is done instead


RETIRED = {"engine.compile_jobs": Retired(1, "blocks are compiled one kind after another")}


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Turn `name=value` texts, values as in YAML, into a mapping of dotted names."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text!r} was given; write it as name=value, for example optim.layer_decay=0.7")
        found[name.strip()] = read_value(value)
    return found


def read_value(text: str) -> Any:
    """Read a value as YAML does, with 1e-3 as a number too."""
    value = _load(text, f"the value {short(text)!r} cannot be read")
    return float(value) if isinstance(value, str) and is_number(value) else value


def to_yaml(config: Any) -> str:
    """Write a settings tree as YAML."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def drop_retired(values: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Return a run's settings without those of earlier versions; a warning names the ones that somebody had chosen."""
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    for full, retired in RETIRED.items():
        group, _, name = full.rpartition(".")
        place = kept.get(group)
        if isinstance(place, dict) and place.get(name, retired.default) != retired.default:
            warnings.warn(f"{source}: {full} = {place[name]} is no longer a setting: {retired.now}", stacklevel=3)
        if isinstance(place, dict):
            place.pop(name, None)
    return kept


def read_yaml(text: str, *, source: str) -> dict[str, Any]:
    """Read a mapping from YAML; `source` is what an error calls the text."""
    values = _load(text, f"{source} is not YAML")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{source} holds a {type(values).__name__}; settings are a mapping of names to values")
    return values


def _load(text: str, complaint: str) -> Any:
    try:
        return load_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{complaint}: {error}") from None


class _Loader(yaml.SafeLoader):
    """Loader that reads 010 and 1:30 as strings, where YAML 1.1 reads 8 and 90."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (INT, FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(INT, re.compile(WHOLE), list("-+0123456789"))
_Loader.add_implicit_resolver(FLOAT, re.compile(BROKEN), list("-+0123456789."))


def load_yaml(text: str) -> Any:
    """Return what a text says; a ValueError says why it cannot be read."""
    try:
        return deepcopy(_parse(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@lru_cache(maxsize=32)
def _parse(text: str) -> Any:
    """Parse a text, with a cache, since a run reads the same recipes many times."""
    if len(text) > TEXT_CHARS:
        raise ValueError(f"it has {len(text)} characters; settings may have at most {TEXT_CHARS}")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _weigh(node, {}) > VALUES:
            raise ValueError(f"its aliases (*name) expand to more than {VALUES} values; write them out")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _weigh(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for with all aliases written out; one inside itself stands for no end."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = VALUES + 1  # until it is known: whoever comes here again is inside of it
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    weight = 1 + sum(_weigh(part, known) for part in parts) if isinstance(node, yaml.CollectionNode) else 1
    known[id(node)] = min(weight, VALUES + 1)
    return known[id(node)]
