"""Code that exists for speed alone: replacements for modules, swapped in by `apply` and undone to the bit.

Nothing in `layers`, `models`, `plugins` or `tasks` knows of it. `table.py` lists what there is.
"""

from .apply import Handle, accelerate, apply, removed, strip
from .guard import Guard

__all__ = ["Guard", "Handle", "accelerate", "apply", "removed", "strip"]
