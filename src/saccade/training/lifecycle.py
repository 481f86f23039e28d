"""Signals, restarts by torchrun, and the lock on a run's folder."""

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
    """Call `wish` with the signal number on the first Ctrl-C or SIGTERM; a second one stops at once."""
    asked, here = False, os.getpid()

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != here:
            return  # inherited by workers, which ignore it
        if asked:
            raise KeyboardInterrupt
        asked = True
        wish(number)

    kept = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(number, handle)
    except ValueError:
        pass  # only the main thread can set handlers
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def run_lock(run: Run, world: World) -> Iterator[None]:
    """Lock a run for the processes of one world; refuse if others hold the lock.

    The main process holds the lock. It vanishes with the process, and workers that outlive it do not hold it.
    """
    run.states.mkdir(parents=True, exist_ok=True)
    with open(run.states / ".lock", "a+", encoding="utf-8") as file:
        refusal = _take(file, run) if world.is_main else None
        refusal = world.gather(refusal)[0]
        if refusal is not None:
            raise RunError(refusal)
        yield


def refuse_if_training(run: Run) -> None:
    """Refuse a run that another process is training."""
    lock = run.states / ".lock"
    if not lock.exists():
        return
    with open(lock, "r+", encoding="utf-8") as file:
        refusal = _take(file, run)
        if refusal is not None:
            raise RunError(refusal)


def _take(file: TextIO, run: Run) -> str | None:
    """Lock a run until the file is closed; return the reason if another process holds the lock."""
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
    except (ImportError, OSError):  # Windows, or a file system without locks: continue unlocked
        pass
    return None


def restarted_run(out: str | Path | None) -> Path | None:
    """Return the run to resume after a restart by torchrun.

    It has to be started by the same torchrun: an older run in that folder is refused, as at the first start.
    """
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or out is None:
        return None
    run = Run(Path(out).expanduser())
    with suppress(OSError):
        written = _file(run).read_text(encoding="utf-8")
        follows = os.environ.get("GROUP_RANK", "0") != "0"  # on another machine than the one that wrote it
        return run.path if follows or written == _name() else None
    return None


def mark(run: Run) -> None:
    """Record which torchrun started a run."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run.states.mkdir(parents=True, exist_ok=True)
        write_text(_file(run), _name())


def _file(run: Run) -> Path:
    return run.states / ".torchrun"


def _name() -> str:
    """Return an identifier of this torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return name if name != "none" else f"{platform.node()} {os.getppid()}"
