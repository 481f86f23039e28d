"""Processes that work beside this one: started, and where there is a GPU before this one has imported anything.

Importing takes each of them several seconds: the first run of a comparison can begin when this one and the first that
trains are done.
"""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_early: dict[str, "subprocess.Popen[bytes]"] = {}  # by the GPU they are to see


def cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    gpu = _gpu_of(device)
    if gpu is None:
        return
    with suppress(OSError):
        _early[gpu] = start({VISIBLE: gpu}, Path(os.devnull))
        atexit.register(end_early)  # of a command that fails before it needs one


def take_early(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
    """Return the worker that was started for such an environment; None if there is none."""
    return _early.pop(environment[VISIBLE], None) if set(environment) == {VISIBLE} else None


def end_early() -> None:
    """End what was started and is not needed."""
    while _early:
        _end(_early.popitem()[1])  # it has done nothing yet


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that has a session of its own, and all that it began."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _gpu_of(device: str | None) -> str | None:
    """Return the first GPU that a device stands for; None where it is none, or this machine seems to have none."""
    kind, _, number = (device or "auto").partition(":")
    if kind not in ("auto", "cuda") or not (number or "0").isdecimal() or not _has_gpu():
        return None
    named, place = named_gpus(), int(number or 0)
    if os.environ.get(VISIBLE) == "" or (named and place >= len(named)):
        return None  # none is to be seen, or not this one: the command itself says so
    return named[place] if named else str(place)


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))
