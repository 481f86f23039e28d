"""A machine that becomes slower while it trains: its clock moves by what is done, so that nothing is left to chance.

As a script it trains with such a clock; `kill` is a step after which the process kills itself.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saccade.training import machine
from saccade.training.loop import Loop
from saccade.training.pace import Pace


@dataclass
class SlowingMachine:
    """A step takes a second and a validation a few, `factor` times as much from a moment on."""

    steps: int  # of an epoch
    slow_from: float  # seconds after which everything takes longer
    factor: float = 2.0
    validation: float = 1.0  # seconds
    time: float = 0.0
    at: list[tuple[float, int]] = field(default_factory=list)  # time and step after each step

    def pass_by(self, seconds: float) -> None:
        """Let work be done that takes so many seconds of the fast machine."""
        fast = min(max(self.slow_from - self.time, 0.0), seconds)
        self.time += fast + (seconds - fast) * self.factor

    def install(self, replace: Callable[[Any, str, Any], None]) -> None:
        """Have trainings of this process go by this machine's clock."""
        run, evaluate = Loop._train_step, Loop.evaluate

        def slow_run(loop: Loop, *args: Any, **options: Any) -> None:
            run(loop, *args, **options)
            self.pass_by(1.0)
            self.at.append((self.time, loop.step))

        def slow_evaluate(loop: Loop) -> Any:
            self.pass_by(self.validation)
            return evaluate(loop)

        replace(Loop, "now", staticmethod(lambda: self.time))
        replace(Loop, "_train_step", slow_run)
        replace(Loop, "evaluate", slow_evaluate)
        replace(machine, "monotonic", lambda: self.time)
        replace(machine, "measure_pace", lambda *_, **__: Pace(0.0, 1.0, self.validation, self.steps))


def _main() -> None:
    """Train as `given` says, on the machine that is described, until the end or a death."""
    from saccade.training.train import train

    spec = json.loads(sys.argv[1])
    SlowingMachine(**spec["machine"]).install(setattr)
    kill, original = spec.get("kill"), Loop._checkpoint_or_stop

    def die(loop: Loop) -> None:
        original(loop)
        if loop.step == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    if kill is not None:
        Loop._checkpoint_or_stop = die  # type: ignore[method-assign]
    begun = (Path(spec["given"]["out"]) / "state").exists()
    train(**({"resume": spec["given"]["out"]} if begun else spec["given"]))


if __name__ == "__main__":
    _main()
