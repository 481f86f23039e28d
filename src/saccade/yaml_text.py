"""Settings read from YAML: plain values alone, numbers as people write them, no text that grows without end."""

import re
from typing import Any

import yaml

TEXT_CHARS, VALUES = 2**20, 100_000  # of a text of settings
INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
WHOLE = r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)\Z"
BROKEN = r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?\Z|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"


class _Loader(yaml.SafeLoader):
    """Reads 010 and 1:30 as they are written, a text: YAML 1.1 takes them for 8 and for 90."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (INT, FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(INT, re.compile(WHOLE), list("-+0123456789"))
_Loader.add_implicit_resolver(FLOAT, re.compile(BROKEN), list("-+0123456789."))


def load_yaml(text: str) -> Any:
    """Return what a text says; a ValueError says why it cannot be read."""
    if len(text) > TEXT_CHARS:
        raise ValueError(f"it has {len(text)} characters; settings have at most {TEXT_CHARS}")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _weigh(node, {}) > VALUES:
            raise ValueError(f"its aliases (*name) stand for more than {VALUES} values; write them out")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
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
