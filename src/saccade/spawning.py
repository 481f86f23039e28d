"""Processes that work beside this one: started, and where there is a GPU before this one has imported anything.

Importing takes each of them several seconds. The first run of a comparison can begin when this one and the first that
trains are done; and where nothing was compiled before, those that compile the kinds of blocks have imported by then.
"""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLACE = "TORCHINDUCTOR_CACHE_DIR"  # where the compiler keeps what it makes
KNOWN = "ahead"  # folder in it, of files that are named by what was compiled
HELPERS = 6  # that are started early; most models have fewer kinds of blocks
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


class Helper(NamedTuple):
    """A process that compiles one kind of block when it is told which."""

    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]  # what it said of them

    def end(self) -> None:
        """End it and all that it began."""
        _end(self.process)
        self.errors.close()


_helpers: list[Helper] = []  # that were started early and have nothing to do yet


def start_helper(threads: int) -> Helper:
    """Start a process that compiles, in some threads; it ends when this process is gone, since its input then ends."""
    # Nothing that it makes is worth looking for what can be freed, which takes a tenth of its time.
    code = f"import gc, sys; gc.disable(); sys.path[:] = {sys.path!r}; from saccade.training.ahead import work; work()"
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={"TORCHINDUCTOR_COMPILE_THREADS": str(threads)} | os.environ,
        start_new_session=True,
    )
    return Helper(process, errors)


def start_helpers(device: str | None) -> None:
    """Start processes that will compile for a training on a device, where nothing was compiled for this user before."""
    count = min(cores() // 2, HELPERS)
    if count < 2 or _gpu_of(device) is None or not _is_cold():
        return
    atexit.register(end_helpers)
    with suppress(OSError):
        _helpers.extend(start_helper(max(cores() // count, 3)) for _ in range(count))


def take_helper() -> Helper | None:
    """Return a process that was started early and still runs; None if there is none."""
    while _helpers:
        helper = _helpers.pop()
        if helper.process.poll() is None:
            return helper
        helper.end()
    return None


def end_helpers() -> None:
    """End those that were started early and are not needed."""
    while _helpers:
        _helpers.pop().end()


def _is_cold() -> bool:
    """Tell whether nothing was compiled for this user before."""
    from .files import cache_folder

    try:
        folder = Path(os.environ.get(PLACE) or cache_folder("compiled"))
        return not any((folder / KNOWN).glob("[0-9a-f]*"))
    except OSError:
        return False


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))
