"""Processes that train for a comparison: started, and for the first GPU before this one has imported anything.

Importing takes both of them several seconds, and the run can begin when both are done.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_early: dict[str, "subprocess.Popen[bytes]"] = {}  # by the GPU they are to see


def named_gpus() -> list[str]:
    """Return the GPUs that the environment lets a process see; none where it names none."""
    return [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]


def start(environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a worker; it stops when this process is gone, since its input then ends."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "saccade.comparison"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
        )


def start_early(device: str | None = None) -> None:
    """Start the worker of the first GPU that a comparison on a device takes, if this machine looks as if it had one."""
    kind, _, number = (device or "auto").partition(":")
    if kind not in ("auto", "cuda") or not (number or "0").isdecimal() or not _has_gpu():
        return
    named, place = named_gpus(), int(number or 0)
    if os.environ.get(VISIBLE) == "" or (named and place >= len(named)):
        return  # none is to be seen, or not this one: the comparison itself says so
    gpu = named[place] if named else str(place)
    with suppress(OSError):
        _early[gpu] = start({VISIBLE: gpu}, Path(os.devnull))
        atexit.register(end_early)  # of a command that fails before it needs one


def take_early(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
    """Return the worker that was started for such an environment; None if there is none."""
    return _early.pop(environment[VISIBLE], None) if set(environment) == {VISIBLE} else None


def end_early() -> None:
    """End what was started and is not needed."""
    while _early:
        process = _early.popitem()[1]
        process.kill()  # it has done nothing yet
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))
