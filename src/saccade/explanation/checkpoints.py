"""Open the checkpoints that a run kept during training."""

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from ..building.build import load_model
from ..models import CheckpointError
from ..runs.state import StateError, list_states, read_state, step_of

WEIGHTS, AVERAGE = "task.model.", "average."  # prefixes of the model's tensors in a state, and of their average


def open_checkpoints(
    run: str | Path, *, epochs: Sequence[int] | None = None
) -> tuple[list[tuple[str, nn.Module]], str]:
    """Return a run's models during training, oldest first, and a sentence on what was kept.

    Args:
        run: a finished run's folder.
        epochs: only the weights at the end of these epochs, counted from 1; default: all that were kept.

    Returns:
        Pairs of name ("step 100", "final weights") and model in evaluation mode; and the sentence.
    """
    folder = Path(run).expanduser()
    final, _ = load_model(folder)
    models: list[tuple[str, nn.Module]] = []
    left_out = []
    ends = _epochs(folder)
    wanted = None if epochs is None else _steps(folder, epochs, ends)
    for step, place in list_checkpoints(folder):
        if wanted is not None and step not in wanted:
            continue
        model = copy.deepcopy(final)
        try:
            model.load_state_dict(read_weights(place))
        except (CheckpointError, RuntimeError) as error:
            left_out.append(f"{place.name} could not be read ({str(error)[:120]})")
            continue
        models.append((f"step {step}" if wanted is None else f"epoch {ends[step]}", model))
    if models and _same(models[-1][1], final):
        models[-1] = (f"{models[-1][0]} (final weights)", models[-1][1])
    elif wanted is None:
        models.append(("final weights", final))
    elif last := [ends[step] for step in wanted if step == max(ends)]:
        models.append((f"epoch {last[0]} (final weights)", final))
    return models, " ".join([_kept(models), *left_out])


def list_checkpoints(run: str | Path) -> list[tuple[int, Path]]:
    """Return steps and folders of a run's states, oldest first; the latest folder of each step."""
    return sorted({step_of(place): place for place in list_states(Path(run).expanduser() / "state")}.items())


def read_weights(place: Path) -> dict[str, Tensor]:
    """Read a model's weights from a state: the average if there is one, as in the final weights."""
    try:
        tensors, _ = read_state(place, only=(WEIGHTS, AVERAGE))
    except StateError as error:
        raise CheckpointError(f"{place} is not a readable state of a run: {error}") from error
    weights = {
        name.removeprefix(prefix): tensor
        for prefix in (WEIGHTS, AVERAGE)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    if not weights:
        raise CheckpointError(f"{place} contains no model weights")
    return weights


def _epochs(run: Path) -> dict[int, int]:
    """Return the epoch that ended at each step, counted from 1."""
    ends = {}
    with suppress(OSError):
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                ends[int(record["step"])] = int(record["epoch"])
    return ends


def _steps(run: Path, epochs: Sequence[int], ends: dict[int, int]) -> set[int]:
    """Return the steps at which epochs ended; epochs without saved weights are refused."""
    kept = {step for step, _ in list_checkpoints(run)} | ({max(ends)} if ends else set())
    found = {ends[step]: step for step in kept if step in ends}
    missing = [epoch for epoch in epochs if epoch not in found]
    if missing:
        raise ValueError(
            f"epochs={list(epochs)}: {run} kept the weights at the end of epochs "
            f"{', '.join(map(str, sorted(found))) or 'none'}. To keep more, train with a higher keep.states and with "
            "keep.every_steps set to the steps of an epoch"
        )
    return {found[epoch] for epoch in epochs}


def _same(model: nn.Module, other: nn.Module) -> bool:
    mine, theirs = model.state_dict(), other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in mine.items())


def _kept(models: Sequence[tuple[str, nn.Module]]) -> str:
    if len(models) == 1:
        return "This run kept only its last weights; train with a higher keep.states to see how they developed."
    names = ", ".join(name for name, _ in models)
    return f"This run kept {names}; a higher keep.states keeps more."
