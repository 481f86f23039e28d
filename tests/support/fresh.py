"""Work in processes of its own, forked from one that has imported PyTorch and computed nothing."""

import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.multiprocessing import start_processes

_fresh = multiprocessing.get_context("forkserver")
_fresh.set_forkserver_preload(["saccade.cli", "saccade.commands.train", "saccade.training.train"])


def start(work: Callable[..., Any], *args: Any, log: Path, **environment: str) -> BaseProcess:
    """Start a process that does some work in a session of its own, and prints to a file.

    Args:
        work: its result is the exit status.
        environment: variables besides the present ones; packages on PYTHONPATH are found.
    """
    log.touch()
    process = _fresh.Process(target=_work, args=(work, args, log, {**os.environ, **environment}))
    process.start()
    return process


def run(work: Callable[..., Any], *args: Any, log: Path, **environment: str) -> int:
    """Do some work in a process of its own, and return its exit status; processes that it leaves behind are ended."""
    process = start(work, *args, log=log, **environment)
    process.join(timeout=1800)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return int(process.exitcode or 0)


def run_command(words: list[str], log: Path, *, processes: int = 1) -> None:
    """Run a `saccade` command, also in several processes as torchrun does; see that each exits with 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank, **shared} for rank in range(processes)] if processes > 1 else [{}]
    started = [start(command, words, log=log, **{name: str(value) for name, value in own.items()}) for own in ranks]
    for process in started:
        process.join(timeout=300)
        process.kill()
    told = log.read_text()[-4000:] if log.exists() else ""
    assert [process.exitcode for process in started] == [0] * processes, told


def run_ranks(work: Callable[..., None], *args: Any, processes: int) -> None:
    """Do some work in several processes, each of which gets its rank first; see that none fails."""
    start_processes(work, args, nprocs=processes, start_method="forkserver")


def command(words: list[str]) -> int:
    """Do what a `saccade` command does, and return its exit status."""
    from saccade.cli import main

    return main(words)


def _work(work: Callable[..., Any], args: tuple[Any, ...], log: Path, environment: dict[str, str]) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.environ.clear()
    os.environ |= environment
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    warnings.simplefilter("ignore")
    sys.exit(work(*args))
