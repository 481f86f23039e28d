"""Operators that a compiler takes as they are, with as little as can be between its code and what they do.

A product made an operator by `torch.library.custom_op` took 97 microseconds a call, and takes 50 to 90 so (torch 2.11).
"""

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("saccade", "FRAGMENT")


def define(schema: str, does: Callable[..., Any], tells: Callable[..., Any], *devices: str) -> None:
    """Make a function an operator of `torch.ops.saccade`.

    Args:
        schema: name, arguments and results, as PyTorch writes them.
        does: the function.
        tells: returns empty tensors of the shapes that it would return.
        devices: that it runs on, as PyTorch's dispatcher names them.
    """
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    for device in devices:
        LIBRARY.impl(name, does, device)
    torch.library.register_fake(f"saccade::{name}", tells, lib=LIBRARY)
