"""A run's process from outside: told to stop by a signal, started again by torchrun, alone in the run's folder."""

import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from ..runs.run import Run, RunError
from ..support.files import write_text
from .parallel import World


@contextmanager
def on_signal(wish: Callable[[int], None]) -> Iterator[None]:
    """Tell of the first Ctrl-C or SIGTERM by calling `wish` with its number; a second one stops at once."""
    asked, here = False, os.getpid()

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != here:
            return  # processes that read have inherited this
        if asked:
            raise KeyboardInterrupt
        asked = True
        wish(number)

    kept = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(number, handle)
    except ValueError:
        pass  # only the main thread may; elsewhere the caller stops us
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def held_alone(run: Run, world: World) -> Iterator[None]:
    """Hold a run for the processes of one world; refuse if others hold it.

    The lock is the leading process's own: one that was killed leaves none behind, and readers that outlive it for a
    moment do not hold it either.
    """
    run.states.mkdir(parents=True, exist_ok=True)
    with open(run.states / ".lock", "a+", encoding="utf-8") as file:
        refusal = _take(file, run) if world.is_main else None
        refusal = world.gather(refusal)[0]
        if refusal is not None:
            raise RunError(refusal)
        yield


def require_free(run: Run) -> None:
    """Refuse to touch a run that another process trains."""
    lock = run.states / ".lock"
    if not lock.exists():
        return
    with open(lock, "r+", encoding="utf-8") as file:
        refusal = _take(file, run)
        if refusal is not None:
            raise RunError(refusal)


def _take(file: TextIO, run: Run) -> str | None:
    """Take the lock of a run until its file is closed; return why not where another process has it."""
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"{os.getpid()}")
        file.flush()
    except (BlockingIOError, PermissionError):
        file.seek(0)
        return (
            f"{run.path} is being trained by another process ({file.read() or 'unknown'}); wait for it, or stop it by "
            "Ctrl-C and resume with --resume"
        )
    except (ImportError, OSError):  # not on Windows, nor on a disk without locks: go on unguarded
        pass
    return None


def begun_before(out: str | Path | None) -> Path | None:
    """Return the run to resume when torchrun started this process again after one of them died.

    It is one that the same torchrun began: an older run in that place is refused again, as it was the first time.
    """
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or out is None:
        return None
    run = Run(Path(out).expanduser())
    with suppress(OSError):
        written = _file(run).read_text(encoding="utf-8")
        follows = os.environ.get("GROUP_RANK", "0") != "0"  # on another machine than the process that wrote it
        return run.path if follows or written == _name() else None
    return None


def mark(run: Run) -> None:
    """Write down which torchrun began a run."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run.states.mkdir(parents=True, exist_ok=True)
        write_text(_file(run), _name())


def _file(run: Run) -> Path:
    return run.states / ".torchrun"


def _name() -> str:
    """Return what all processes of one torchrun have in common, and those of another have not."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return name if name != "none" else f"{platform.node()} {os.getppid()}"
