"""One run of a comparison, in this process or as `python -m saccade.comparison.worker JSON`."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ..config import TrainConfig, overlay
from ..files import write_text
from ..runs import Run
from ..training.loop import Interrupted, TrainingError
from ..training.pace import Pace, measure_pace
from ..training.parallel import local_device
from ..training.train import train_config
from .folder import hold, is_finished, resumable
from .snapshot import DataCache

GRACE = 30.0  # seconds to save the state after the parent is gone
COST = "cost.json"

Kind = Literal["finished", "refused", "memory", "failed", "stopped"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        kind: "finished"; "refused" (it would end the same way again), "memory", "failed" or "stopped" (to be resumed).
        reason: why it did not finish.
    """

    kind: Kind
    reason: str = ""


def train_run(config: TrainConfig, path: Path) -> Outcome:
    """Train a run, or resume it; one that is finished is left alone.

    Args:
        config: with the seed.
        path: of the run's folder.
    """
    try:
        with hold(path.with_name(f".{path.name}.lock")):
            if not is_finished(path):
                _train(config, path)
    except Interrupted:
        raise
    except torch.OutOfMemoryError as error:
        return Outcome("memory", str(error).splitlines()[0])
    except (TrainingError, MemoryError) as error:
        memory = isinstance(error, MemoryError) or isinstance(error.__cause__, torch.OutOfMemoryError)
        return Outcome("memory" if memory else "refused", str(error) or "out of memory")
    except (ValueError, TypeError) as error:
        return Outcome("refused", str(error))
    except Exception as error:  # whatever a model or a disk does, the other arms go on
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}")
    return Outcome("finished")


def _train(config: TrainConfig, path: Path) -> None:
    begun, run = time.monotonic(), resumable(path)
    if run is not None:
        machine = {"engine.device": config.engine.device, "engine.threads": config.engine.threads}
        train_config(overlay(run.config(), machine), run=run, quiet=True)
        return
    device = local_device(config.engine.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    train_config(config, out=path, quiet=True)
    cost: dict[str, Any] = {"wall_seconds": time.monotonic() - begun}
    if device.type == "cuda":
        cost |= {"peak_memory": torch.cuda.max_memory_allocated(device)}
    write_text(path / COST, json.dumps(cost))


def probe(config: TrainConfig) -> Pace:
    """Time a few steps and some validation images of a run, without keeping anything."""
    begun = time.monotonic()
    choice, data = DataCache().open(config)
    pace = measure_pace(config, choice, data, local_device(config.engine.device))
    return replace(pace, startup=pace.startup + max(time.monotonic() - begun - pace.took, 0.0))


def pace_of(path: Path, config: TrainConfig) -> Pace | None:
    """Return the pace of a finished run; None if it was resumed, so that its whole time is not known."""
    run = Run(path)
    try:
        cost = json.loads((path / COST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    records = run.metrics()
    steps = records[-1]["step"] // max(len(records), 1)
    seconds = sum(record["seconds"] for record in records)
    rest = cost["wall_seconds"] - seconds
    every = config.keep.evaluate_every
    return Pace(max(rest, 0.0), seconds / records[-1]["step"], 0.0, steps, every, "from a finished run")


def main(argv: list[str]) -> int:
    """Do what the JSON says and write how it ended; stop when the process that began it is gone."""
    spec = json.loads(argv[1])
    config = overlay(TrainConfig(), spec["config"], source="the comparison")
    threading.Thread(target=_follow_parent, daemon=True).start()
    answer: Mapping[str, Any]
    try:
        if spec["do"] == "probe":
            begun = time.monotonic()
            answer = {"pace": asdict(probe(config)), "inside": time.monotonic() - begun}
        else:
            answer = asdict(train_run(config, Path(spec["path"])))
    except Interrupted as stopped:
        answer = asdict(Outcome("stopped", str(stopped)))
    except Exception as error:
        traceback.print_exc()
        answer = {"kind": "failed", "reason": str(error) or type(error).__name__}
    write_text(Path(spec["answer"]), json.dumps(answer))
    return 0


def _follow_parent() -> None:
    """Stop this process, state saved, when the one that holds the other end of its input has ended."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
