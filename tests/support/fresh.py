"""Commands in processes of their own, forked from one that has imported PyTorch and computed nothing."""

import multiprocessing
import os
import socket
import sys
from pathlib import Path

_fresh = multiprocessing.get_context("forkserver")
_fresh.set_forkserver_preload(["saccade.cli", "saccade.commands.train", "saccade.training.train"])


def run_command(words: list[str], log: Path, *, processes: int = 1) -> None:
    """Run a `saccade` command, also in several processes as torchrun does; see that each exits with 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank, **shared} for rank in range(processes)] if processes > 1 else [{}]
    started = [
        _fresh.Process(target=_run, args=(words, log, {name: str(value) for name, value in own.items()}))
        for own in ranks
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=300)
        process.kill()
    told = log.read_text()[-4000:] if log.exists() else ""
    assert [process.exitcode for process in started] == [0] * processes, told


def _run(words: list[str], log: Path, environment: dict[str, str]) -> None:
    from saccade.cli import main

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.environ |= environment
    sys.exit(main(words))
