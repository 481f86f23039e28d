"""Whether a model is being exported: torch 2.11 says yes to `torch.compiler.is_exporting` wherever it compiles."""

import torch


def is_exporting() -> bool:
    """Tell whether `torch.export` runs, and not `torch.compile`."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))
