"""Restore a run's last state; refuse if its samples, teacher or initial weights have changed."""

from typing import Any

from ..data.image import read_faults
from ..runs.run import Run
from ..runs.state import State, StateError, set_aside
from .console import Console
from .identity import differences, other_differences
from .optimizer_state import load_optimizer_state
from .parallel import fill
from .step import Step


class RestorableStep(Step):
    """A step with the progress of a run, which can be restored from a saved state."""

    run: Run
    console: Console
    epoch: int  # finished epochs
    seconds: float  # of this epoch
    best: float | None
    stale: int
    earlier_kernels: list[str]

    def restore(self, state: State) -> None:
        """Restore a saved state; an empty one is the start of training."""
        if len(set(self.world.gather(state.record.get("step")))) > 1:
            raise StateError(
                f"the processes found different states in {self.run.states}; all processes need one shared disk"
            )
        if self.world.is_main:
            set_aside(state.passed)
        if not state.record:
            self._refuse_to_lose()
            return
        self._refuse_other_data(state.record["data"])
        self._keep_frame(state.record["data"])
        for name, value in self.task.state_dict().items():
            fill(value, state.tensors[f"task.{name}"])
        tensors = {name[6:]: v for name, v in state.tensors.items() if name.startswith("optim.")}
        counts_on = self.device if self.graphs or self.config.optim.name in ("adam", "adamw") else None
        load_optimizer_state(self.optimizer, self.names, tensors, state.record["optimizer"], counts_on=counts_on)
        if self.average is not None:
            for name, value in self.average.tensors().items():
                fill(value, state.tensors[f"average.{name}"])
        record = state.record
        self.step, self.epoch, self.seconds = record["step"], record["epoch"], record["seconds"]
        self.length = self.length.restored(record.get("length", {}))
        self.console.shorten(self.length)
        # Earlier versions stored -1 for no score.
        self.best = None if record["best"] == -1.0 else record["best"]
        self.stale = record["stale"]
        self.earlier_kernels = record.get("kernels", [])
        if record["scaler"] and self.scaler.is_enabled():  # only if both runs use float16
            self.scaler.load_state_dict(record["scaler"])
        self.feed.bad.update(read_faults(record["bad"]))
        self.parts.validation.bad |= read_faults(record["bad_validation"]) | self.parts.validation.bad
        if self.world.is_main:
            self.totals.copy_(state.tensors["totals"])
            self.run.forget_after(self.epoch)

    def _refuse_other_data(self, saved: dict[str, Any]) -> None:
        changes = differences(saved, self.parts.identity)
        if changes:
            raise StateError(
                f"the samples have changed since {self.run.path} was started: {'; '.join(changes)}. Restore them "
                "(--set data.path=... if they have moved), or start a new run; it can start from this run's weights: "
                f"--checkpoint {self.run.path}"
            )
        if changes := other_differences(saved, self.parts.identity):
            raise StateError(
                f"the starting point of {self.run.path} has changed: {'; '.join(changes)}. Restore it, or start a "
                f"new run; it can start from this run's weights: --checkpoint {self.run.path}"
            )

    def _keep_frame(self, saved: dict[str, Any]) -> None:
        """Go on counting a run of an earlier version in the model's square, and say so."""
        if "extra.frame" in saved.get("spec", {}) or self.parts.spec.extra.pop("frame", None) is None:
            return
        self.parts.identity["spec"].pop("extra.frame", None)
        self.console.say(
            f"{self.run.path} was started by an earlier version: its metrics still count pixels of the model's square, "
            "so it cannot be compared with newer runs"
        )

    def _refuse_to_lose(self) -> None:
        if self.run.metrics() or self.run.finished():
            raise StateError(
                f"{self.run.states} holds no saved state although {self.run.path} has trained, so it cannot be "
                "resumed. Start a new run, or replace this one with --overwrite"
            )
