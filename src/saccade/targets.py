"""What a user may name as a model: a run's folder, the weights one wrote, or a model of timm by its name."""

import difflib
from pathlib import Path

import timm

from .building import resolve_name
from .models import CheckpointError

ALLOWED = "a run's folder, its model.safetensors"


def find_target(target: str | Path, *, allowed: str = ALLOWED) -> str:
    """Return what `open_model` can open: a path as it was given, or timm's full name for a short one.

    Args:
        target: what was given; `vit_tiny` stands for `vit_tiny_patch16_224`, as in training.
        allowed: what may be given besides a timm model, in words.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        _require_weights(path)
    if path.exists():
        return str(target)
    try:
        return resolve_name(str(target))
    except ValueError:
        near = difflib.get_close_matches(str(target), timm.list_models(), n=3)
        hint = f" (the nearest are {', '.join(near)})" if near else ""
        raise CheckpointError(
            f"there is no {target}, and timm has no model of that name{hint}; give {allowed}, or the name of a timm "
            "model with pretrained weights"
        ) from None


def _require_weights(folder: Path) -> None:
    """Refuse a folder without weights, and say what it is."""
    if (folder / "model.safetensors").exists():
        return
    if (folder / "config.yaml").is_file():
        raise CheckpointError(
            f"{folder} is a run that has not come to its end, where its weights are written; go on with it by saccade "
            f"train --resume {folder}"
        )
    if (folder / "comparison.json").is_file():
        raise CheckpointError(f"{folder} is a comparison; give one of its runs, in {folder / 'runs'}")
    raise CheckpointError(f"{folder} holds no model.safetensors, so it is no run; give a folder `saccade train` wrote")
