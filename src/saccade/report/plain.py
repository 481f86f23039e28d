"""Convert values to JSON."""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np


def to_json(value: Any, *, digits: int | None = None, hidden: Collection[str] = ()) -> Any:
    """Convert a value to JSON values; non-finite numbers become None.

    Args:
        value: any value; other types are converted by `to_dict`, dataclass fields, or `str`.
        digits: decimals of numbers; default: all.
        hidden: names of dataclass fields to leave out.
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
