"""Entry point of worker processes; the GPU is initialised during imports."""

import os
import sys
import threading
from contextlib import suppress

from ..support.importing import quick_imports
from ..support.spawning import VISIBLE


def main() -> int:
    """Run a worker."""
    with quick_imports():
        import torch  # before the thread starts, since imports must not run concurrently

        if os.environ.get(VISIBLE) and torch.cuda.is_available():
            threading.Thread(target=wake, daemon=True).start()
        from .run.worker import main as work

    return work()


def wake() -> None:
    """Load libraries that most models need; errors are reported later."""
    import torch
    import torch.nn.functional as F

    with suppress(Exception):
        torch.rand(64, 64).erfinv() @ torch.rand(64, 64)  # loads CPU libraries
        weights = [torch.ones(64, *shape, device="cuda", requires_grad=True) for shape in ((3, 4, 4), (64,), ())]
        conv, linear, scale = weights
        with torch.autocast("cuda", torch.bfloat16):
            x = F.conv2d(torch.ones(8, 3, 32, 32, device="cuda"), conv, stride=4).flatten(2)
            x = F.gelu(F.linear(F.layer_norm(x, (64,), scale), linear)).unflatten(-1, (1, 64))
            y = F.scaled_dot_product_attention(x, x, x).mean((1, 2))
        F.cross_entropy(y, y.detach().softmax(-1)).backward()
        torch._foreach_norm([weight.grad for weight in weights if weight.grad is not None])
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
