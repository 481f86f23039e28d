"""Which kernels may run: `--kernels`, `engine.kernels`, or SACCADE_KERNELS in the environment."""

import difflib
import os
from collections.abc import Sequence

VARIABLE = "SACCADE_KERNELS"


def chosen(use: str, known: Sequence[str]) -> frozenset[str]:
    """Return the names that a value stands for.

    Args:
        use: "auto", "off", "gelu,attention" (these alone) or "-gelu" (all others); "auto" asks the environment first.
        known: every name there is.
    """
    words, source = _words(use)
    if words in ([], ["auto"]):
        return frozenset(known)
    if words == ["off"]:
        return frozenset()
    left_out = {word[1:] for word in words if word.startswith("-")}
    alone = {word for word in words if not word.startswith("-")}
    for name in sorted(left_out | alone):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            others = f"; the kernels are {', '.join(known)}; a - before a name leaves that kernel out" if known else ""
            raise ValueError(
                f"{source} was given, but there is no kernel {name!r}; {hint}'auto' and 'off' must be given "
                f"alone{others}"
            )
    if left_out and alone:
        raise ValueError(f"{source} was given; either name the kernels that run or, each with a -, those that do not")
    return frozenset(alone) if alone else frozenset(known) - left_out


def named(use: str) -> frozenset[str]:
    """Return the names that a value asks for one by one."""
    return frozenset(word for word in _words(use)[0] if word not in ("auto", "off") and not word.startswith("-"))


def _words(use: str) -> tuple[list[str], str]:
    """Return the words of a value, or of the environment where that decides, and what an error calls it."""
    asked = os.environ.get(VARIABLE, "").strip() if use.strip() in ("", "auto") else ""
    words = [word.strip() for word in (asked or use).split(",") if word.strip()]
    return words, f"{VARIABLE}={asked!r}" if asked else f"kernels={use!r}"
