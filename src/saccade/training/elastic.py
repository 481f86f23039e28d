"""Go on with a run that the same torchrun began, when it starts its processes again after one of them died."""

import os
import platform
from contextlib import suppress
from pathlib import Path

from ..files import write_text
from ..runs import Run


def begun_before(out: str | Path | None) -> Path | None:
    """Return the run to go on with when torchrun started this process again after one of them died.

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
