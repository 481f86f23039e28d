"""Weight averaging (model soups) of several runs that started from the same weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models._identify import resolve_name
from ..runs.earlier import restore_options
from ..runs.metadata import check_model, read_described
from ..runs.weights import find_weights, save_model
from ..settings import ConfigError
from ..tasks.opening import find_task
from .build import load_model

FACTS = (
    "model",
    "outputs",
    "task",
    "img_size",
    "shorter",
    "mean",
    "std",
    "in_chans",
)  # entries that runs must have in common
OF_SAMPLES = ("thresholds", "pixels")  # entries that depend on a run's samples


def average_weights(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Average the weights of runs of the same model and classes, and save them as a file that all commands open.

    Args:
        runs: two or more run folders or files of weights.
        out: the file to write.
    """
    if len(runs) < 2:
        raise ConfigError(f"cannot average {len(runs)} runs; give two or more")
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    first: dict[str, Any] = {}
    for run in runs:
        file = find_weights(run)
        about, weights = read_described(file)
        about, _ = restore_options(file, about)
        facts = {name: about.get(name) for name in FACTS}
        extra = about.get("extra") or {}
        facts["extra"] = {name: value for name, value in extra.items() if name not in OF_SAMPLES}
        first = first or facts
        differing = [name for name in facts if facts[name] != first[name]]
        if differing:
            raise ConfigError(
                f"{run} differs from {runs[0]} in {', '.join(differing)}; only weights of one model with the same "
                "outputs can be averaged"
            )
        for name, value in weights.items():
            kinds.setdefault(name, value.dtype)
            total[name] = total[name] + value.double() if name in total else value.double()
    mean = {name: (value / len(runs)).to(kinds[name]) for name, value in total.items()}
    if not all(bool(torch.isfinite(value).all()) for value in mean.values()):
        raise ConfigError("the mean of the runs' weights is not finite; exclude the run that diverged")
    _, spec = load_model(runs[0])
    own = find_task(spec.task).hosts.builds(str(first["model"]["name"]))
    config = check_model(first["model"], resolve=None if own else resolve_name)
    path = Path(out).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(path, mean, config, spec)
    return path
