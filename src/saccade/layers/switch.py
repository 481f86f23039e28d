"""Which code that exists for speed alone may run: `SACCADE_KERNELS`, as the environment has it when a process begins.

`auto` is all of it, `off` none, so that plain PyTorch computes everything; `-depthwise,-halves` leaves single gates
out, `depthwise,halves` lets these alone. What keeps a compiler from failing is no gate and stays.
"""

import difflib
import os

VARIABLE = "SACCADE_KERNELS"
GATES = {
    "reuse": "eager inference: results written over what nobody reads again",
    "depthwise": "convolutions of single channels by kernels on a GPU",
    "gelu": "GELU by a shorter formula, compiled for a GPU in half precision",
    "attention": "attention among few tokens by a kernel or products, in training compiled for a GPU",
    "cluster": "bridges between a map and its slots by kernels, in training compiled for a GPU",
    "cluster_forms": "the same by fused attention and by rows of positions, on a GPU",
    "pool": "averages over cells as plain sums or products instead of adaptive pooling, on a GPU",
    "norm": "a sum and the layer norm behind it by one kernel, in training compiled for a GPU",
    "halves": "weights of a stage converted to half precision at once, compiled for a GPU",
    "ports": "gradients of a block that kernels leave in parts added up at once",
    "biases": "gradients of biases summed where the layer's output is read",
    "patches": "convolutions of patches as products",
    "unbiased": "biases before a batch norm left out in training on a GPU",
    "late_bias": "biases added behind a max pooling instead of before it, on a GPU",
    "max_pool": "max pooling that a compiler makes plain kernels of, in training",
    "dense": "dense blocks by rows on a GPU, and a few images at a time on a CPU",
    "pieces": "dense blocks as sums over pieces instead of by concatenations",
}


def read(text: str) -> frozenset[str]:
    """Return the gates that are open for a value of the variable."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words in ([], ["auto"]):
        return frozenset(GATES)
    if words == ["off"]:
        return frozenset()
    out = {word[1:] for word in words if word.startswith("-")}
    alone = {word for word in words if not word.startswith("-")}
    for name in sorted(out | alone):
        if name not in GATES:
            near = difflib.get_close_matches(name, GATES, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"{VARIABLE}={text!r} was given, and there is no {name!r}; {hint}auto and off stand alone, others are "
                f"{', '.join(GATES)}, each with a - before it to leave it out"
            )
    if out and alone:
        raise ValueError(f"{VARIABLE}={text!r} was given; name either what is to run or, each with a -, what is not")
    return frozenset(alone) if alone else frozenset(GATES) - out


OPEN = read(os.environ.get(VARIABLE, ""))


def on(gate: str) -> bool:
    """Tell whether what a gate guards may run."""
    return gate in OPEN
