"""Keep two processes from training in one run's folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..runs import Run, RunError
from .parallel import World


@contextmanager
def held_alone(run: Run, world: World) -> Iterator[None]:
    """Hold a run for the processes of one world; refuse if others hold it.

    The lock is the leading process's own: one that was killed leaves none behind, and readers that outlive it for a
    moment do not hold it either.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    run.states.mkdir(parents=True, exist_ok=True)
    with open(run.states / ".lock", "a+", encoding="utf-8") as file:
        refusal = None
        if world.leads:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(f"{os.getpid()}")
                file.flush()
            except (BlockingIOError, PermissionError):
                file.seek(0)
                refusal = f"{run.path} is being trained by another process ({file.read() or 'unknown'}); wait for it, "
                refusal += "or stop it by Ctrl-C and go on with --resume"
            except OSError:  # a disk without locks: go on unguarded
                pass
        refusal = world.gather(refusal)[0]
        if refusal is not None:
            raise RunError(refusal)
        yield
