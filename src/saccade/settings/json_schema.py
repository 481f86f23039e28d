"""JSON Schema of recipes and of a run's `config.yaml`, by which editors complete and check them."""

import json
import math
import types
from typing import Any, Literal, Union, get_args, get_origin

from .schema import TrainConfig, walk
from .values import Range, Several

PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
# Keys of a recipe beside settings.
OF_RECIPES = {
    "variants": "patterns of model names, each with settings for these models",
    "families": "name of a file of settings for families of models",
    "grid": "settings by name, each with the values that `saccade tune` tries",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all settings, nested as in a recipe."""
    tree: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "saccade settings",
        **_group(TrainConfig.__doc__),
    }
    for name, item, hint in walk():
        place, (*groups, last) = tree, name.split(".")
        for group in groups:
            doc = TrainConfig.__dataclass_fields__[group].type.__doc__
            place = place["properties"].setdefault(group, _group(doc))
        about = item.metadata
        text = about["help"] + (f" (if not set: {about['unset']})" if about["unset"] else "")
        default = getattr(_owner(groups), last)
        place["properties"][last] = {**_type(hint, about["allowed"]), "description": text, "default": default}
    tree["properties"] |= {
        name: {"type": ["string", "null"] if name == "families" else "object", "description": text}
        for name, text in OF_RECIPES.items()
    }
    tree["properties"]["variants"]["additionalProperties"] = {"$ref": "#"}
    return {**tree, "patternProperties": {r"\.": {"description": "a setting by its dotted name"}}}


def _owner(groups: list[str]) -> Any:
    found: Any = TrainConfig()
    for group in groups:
        found = getattr(found, group)
    return found


def _group(doc: str | None) -> dict[str, Any]:
    return {"type": "object", "description": doc, "additionalProperties": False, "properties": {}}


def _type(hint: Any, allowed: Range | Several | None = None) -> dict[str, Any]:
    """Return the schema of a type hint, its numbers within what is allowed."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(arg, allowed) for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is list:
        several = allowed if isinstance(allowed, Several) else None
        lengths = (
            {"minItems": min(several.lengths), "maxItems": max(several.lengths)} if several and several.lengths else {}
        )
        return {"type": "array", "items": _type(args[0], several.each if several else None), **lengths}
    if origin is dict:
        return {"type": "object", "additionalProperties": {} if args[1] is Any else _type(args[1])}
    found = {"type": PLAIN[hint]}
    return found | _bounds(allowed) if hint in (int, float) and isinstance(allowed, Range) else found


def _bounds(allowed: Range) -> dict[str, Any]:
    found: dict[str, Any] = {"exclusiveMinimum" if allowed.above else "minimum": allowed.low}
    if not math.isinf(allowed.high):
        found["exclusiveMaximum" if allowed.below else "maximum"] = allowed.high
    return found


if __name__ == "__main__":
    print(json.dumps(json_schema()))  # what schema.json holds
