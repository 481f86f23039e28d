"""A model and a set so small that a training run takes a second or two."""

from typing import Any

TINY_MODEL: dict[str, Any] = {
    "dims": [16, 32],
    "depths": [1, 1],
    "pattern": ["G", "A"],
    "num_slots": 4,
    "num_heads": [2, 2],
    "patch": 4,
}
TINY: dict[str, Any] = {
    "data.train_limit": 64,
    "optim.batch_size": 16,
    "engine.device": "cpu",
    "engine.threads": 1,
    "model.options": TINY_MODEL,
}


def tiny(**more: Any) -> dict[str, Any]:
    """Return the settings of a tiny run; names of more settings are written with two underscores for a dot."""
    return TINY | {name.replace("__", "."): value for name, value in more.items()}
