"""Resume a run from its last state; refuse if its samples, teacher or initial weights have changed."""

from typing import Any

from ..data.image import read_faults
from ..runs.state import State, StateError, load_state, set_aside
from ..settings import to_yaml
from ..support.files import write_text
from .console import Console
from .identity import differences, other_differences
from .loop import Loop
from .optimizer_state import load_optimizer_state
from .parallel import fill


def resume(loop: Loop, console: Console) -> None:
    """Restore the last readable state of a run and print where it resumes."""
    run = loop.run
    state = load_state(run.states)
    for note in state.notes:
        console.say(note, style="yellow")
    restore(loop, state)
    if loop.world.is_main:
        write_text(run.settings, to_yaml(loop.config))  # keep settings that were changed
    if loop.ended():
        console.say(f"{run.path} is already finished (step {loop.step}); writing its weights and report again")
    else:
        console.say(f"resuming {run.path} at step {loop.step} (epoch {loop.epoch + 1})")


def restore(loop: Loop, state: State) -> None:
    """Restore a saved state; an empty one is the start of training."""
    if len(set(loop.world.gather(state.record.get("step")))) > 1:
        raise StateError(f"the processes found different states in {loop.run.states}; they need one common disk")
    if loop.world.is_main:
        set_aside(state.passed)
    if not state.record:
        _refuse_to_lose(loop)
        return
    _refuse_other_data(loop, state.record["data"])
    for name, value in loop.task.state_dict().items():
        fill(value, state.tensors[f"task.{name}"])
    tensors = {name[6:]: v for name, v in state.tensors.items() if name.startswith("optim.")}
    counts_on = loop.device if loop.graphs or loop.config.optim.name in ("adam", "adamw") else None
    load_optimizer_state(loop.optimizer, loop.names, tensors, state.record["optimizer"], counts_on=counts_on)
    if loop.average is not None:
        for name, value in loop.average.tensors().items():
            fill(value, state.tensors[f"average.{name}"])
    record = state.record
    loop.step, loop.epoch, loop.seconds = record["step"], record["epoch"], record["seconds"]
    loop.length = loop.length.restored(record.get("length", {}))
    loop.console.shorten(loop.length)
    # Earlier versions stored -1 for no score.
    loop.best = None if record["best"] == -1.0 else record["best"]
    loop.stale = record["stale"]
    loop.earlier_kernels = record.get("kernels", [])
    if record["scaler"] and loop.scaler.is_enabled():  # only if both runs use float16
        loop.scaler.load_state_dict(record["scaler"])
    loop.feed.bad.update(read_faults(record["bad"]))
    loop.parts.validation.bad |= read_faults(record["bad_validation"]) | loop.parts.validation.bad
    if loop.world.is_main:
        loop.totals.copy_(state.tensors["totals"])
        loop.run.forget_after(loop.epoch)


def _refuse_other_data(loop: Loop, saved: dict[str, Any]) -> None:
    changes = differences(saved, loop.parts.identity)
    if changes:
        raise StateError(
            f"the samples are not those that {loop.run.path} was begun with: {'; '.join(changes)}. Put them back "
            "as they were (--set data.path=... if they lie elsewhere now), or begin another run; it can start from "
            f"this one's weights: --checkpoint {loop.run.path}"
        )
    if changes := other_differences(saved, loop.parts.identity):
        raise StateError(
            f"what {loop.run.path} was begun with is another now: {'; '.join(changes)}. Put it back as it was, or "
            f"begin another run; it can start from this one's weights: --checkpoint {loop.run.path}"
        )


def _refuse_to_lose(loop: Loop) -> None:
    if loop.run.metrics() or loop.run.finished():
        raise StateError(
            f"{loop.run.states} holds no state though {loop.run.path} has trained; it cannot be resumed. Begin "
            "another run, or replace this one with --overwrite"
        )
