"""A process that trains for a comparison: its GPU wakes while the rest is imported."""

import os
import sys
import threading
from contextlib import suppress

import torch  # before there is another thread: modules are not to be imported by two at once

from ..spawning import VISIBLE


def main() -> int:
    """Be a worker."""
    if os.environ.get(VISIBLE) and torch.cuda.is_available():
        threading.Thread(target=wake, daemon=True).start()
    from .worker import main as work

    return work()


def wake() -> None:
    """Load what any step needs; what fails here fails again where it is told."""
    with suppress(Exception), torch.no_grad():
        x = torch.ones(2, 16, 16, 16, dtype=torch.bfloat16, device="cuda")
        torch.nn.functional.conv2d(x, x[:1])
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
