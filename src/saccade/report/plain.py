"""Any value as JSON has words for it."""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np


def to_json(value: Any, *, digits: int | None = None, hidden: Collection[str] = ()) -> Any:
    """Return what JSON has a word for; numbers that are not finite are nothing.

    Args:
        value: of any kind; what JSON does not know is taken by its `to_dict`, by its fields if it is a dataclass, or
            becomes text.
        digits: after the point of a number; all if not given.
        hidden: fields of dataclasses that are left out.
    """
    inside = partial(to_json, digits=digits, hidden=hidden)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if digits is None else round(value, digits)
    if isinstance(value, np.ndarray | np.generic):
        return inside(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): inside(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [inside(item) for item in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: inside(getattr(value, item.name)) for item in fields(value) if item.name not in hidden}
    return str(value)
