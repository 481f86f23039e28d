"""Any value as JSON has words for it."""

import math
from typing import Any

import numpy as np


def to_json(value: Any, *, digits: int | None = None) -> Any:
    """Return what JSON has a word for; numbers that are not finite are nothing.

    Args:
        value: of any kind; what JSON does not know becomes text.
        digits: after the point of a number; all if not given.
    """
    if isinstance(value, dict):
        return {str(key): to_json(item, digits=digits) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist(), digits=digits)
    if isinstance(value, list | tuple):
        return [to_json(item, digits=digits) for item in value]
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if digits is None else round(value, digits)
    return value if value is None or isinstance(value, str | int) else str(value)
