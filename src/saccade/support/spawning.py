"""Start worker processes; with a GPU, before this process imports anything.

Imports take several seconds in each process, so that starting early saves time before the first run of a comparison.
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
_early: dict[str, "subprocess.Popen[bytes]"] = {}  # by their visible GPU


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def named_gpus() -> list[str]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, if set."""
    return [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]


def start(environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a worker, which exits when this process does and closes its input."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "saccade.comparison"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C only reaches this process, which then stops the workers
        )


def start_early(device: str | None = None) -> None:
    """Start the worker of a comparison's first GPU, if this machine seems to have one."""
    gpu = _gpu_of(device)
    if gpu is None:
        return
    with suppress(OSError):
        _early[gpu] = start({VISIBLE: gpu}, Path(os.devnull))
        atexit.register(end_early)  # for commands that fail before using it


def take_early(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
    """Return the early worker for an environment, if there is one."""
    return _early.pop(environment[VISIBLE], None) if set(environment) == {VISIBLE} else None


def end_early() -> None:
    """Stop unused early workers."""
    while _early:
        _end(_early.popitem()[1])  # it has no work to save


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with its own session, and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _gpu_of(device: str | None) -> str | None:
    """Return the first GPU of a device name; None without one."""
    kind, _, number = (device or "auto").partition(":")
    if kind not in ("auto", "cuda") or not (number or "0").isdecimal() or not _has_gpu():
        return None
    named, place = named_gpus(), int(number or 0)
    if os.environ.get(VISIBLE) == "" or (named and place >= len(named)):
        return None  # not visible; the command raises the error
    return named[place] if named else str(place)


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))
