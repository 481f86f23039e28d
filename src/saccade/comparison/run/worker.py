"""Train the runs of a comparison, in this process or in workers controlled by JSON lines."""

import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...runs.run import Run, hold
from ...settings import TrainConfig, overlay
from ...settings.decisions import Decision
from ...support.files import read_record, write_text
from ...training.allowance import Allowance, DeadlineExceeded
from ...training.engine import free_memory
from ...training.loop import Interrupted, TrainingError
from ...training.pace import Pace, measure_pace
from ...training.parallel import local_device
from ...training.resumed import reopened_config
from ...training.train import train_config
from ..conclude.soundness import Probes
from ..plan.snapshot import DataCache
from .folder import is_finished, resumable

GRACE = 30.0  # seconds to save the state after the parent has exited
COST = "cost.json"

Kind = Literal["finished", "refused", "memory", "failed", "stopped", "late"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run."""

    # "finished", "refused" (not to be retried), "memory", "failed", "stopped" or "late" (to be resumed)
    kind: Kind
    reason: str = ""  # reason if it did not finish
    epoch_seconds: float | None = None  # duration of an epoch, if late


def train_run(
    config: TrainConfig,
    path: Path,
    cache: DataCache | None = None,
    *,
    allowance: Allowance | None = None,
    record: Sequence[Decision] = (),
) -> Outcome:
    """Train or resume a run, within its allowance; finished runs are skipped."""
    try:
        with hold(path.with_name(f".{path.name}.lock")):
            if not is_finished(path):
                _train(config, path, cache or DataCache(), allowance, record)
    except Interrupted:
        raise
    except DeadlineExceeded as late:
        return Outcome("late", str(late), late.epoch_seconds)
    except torch.OutOfMemoryError as error:
        return Outcome("memory", str(error).splitlines()[0])
    except (TrainingError, MemoryError) as error:
        memory = isinstance(error, MemoryError) or isinstance(error.__cause__, torch.OutOfMemoryError)
        return Outcome("memory" if memory else "refused", str(error) or "out of memory")
    except (ValueError, TypeError) as error:
        return Outcome("refused", str(error))
    except Exception as error:  # errors must not stop the other arms
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}")
    return Outcome("finished")


def _train(
    config: TrainConfig, path: Path, cache: DataCache, allowance: Allowance | None, record: Sequence[Decision]
) -> None:
    begun, run = time.monotonic(), resumable(path)
    if run is not None:
        machine = {"engine.device": config.engine.device, "engine.threads": config.engine.threads}
        decided = list[Decision]()
        begun_with = overlay(reopened_config(run, decided), machine)
        train_config(begun_with, run=run, quiet=True, allowance=allowance, record=decided)
        return
    device = local_device(config.engine.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    train_config(config, out=path, quiet=True, opened=cache.open(config), allowance=allowance, record=record)
    cost: dict[str, Any] = {"wall_seconds": time.monotonic() - begun}
    if device.type == "cuda":
        cost |= {"peak_memory": torch.cuda.max_memory_allocated(device)}
    write_text(path / COST, json.dumps(cost))


def probe(config: TrainConfig, cache: DataCache | None = None) -> Pace:
    """Time a few steps and some validation images of a run; nothing is kept."""
    device = local_device(config.engine.device)
    torch.zeros(1, device=device)  # initialises the GPU
    begun = time.monotonic()
    choice, data = (cache or DataCache()).open(config)
    pace = measure_pace(config, choice, data, device)
    return replace(pace, startup=pace.startup + max(time.monotonic() - begun - pace.took, 0.0))


def pace_of(path: Path, config: TrainConfig) -> Pace | None:
    """Return the pace of a finished run; None if it was resumed, since its duration is unknown."""
    run = Run(path)
    cost = read_record(path / COST)
    if not cost:
        return None
    records = run.metrics()
    steps = records[-1]["step"] // max(len(records), 1)
    seconds = sum(record["seconds"] for record in records)
    rest = cost["wall_seconds"] - seconds
    every = config.keep.evaluate_every
    return Pace(max(rest, 0.0), seconds / records[-1]["step"], 0.0, steps, every, "from a finished run")


def main() -> int:
    """Execute jobs and write their results until the parent exits."""
    inbox, cache = Inbox(), DataCache()
    gc.freeze()  # exclude imported objects from garbage collection
    while (asked := inbox.next()) is not None:
        _say_to(Path(asked["log"]))
        found = _do(asked, cache)
        inbox.busy = False
        write_text(Path(asked["answer"]), json.dumps(found))
        if found.get("kind") == "stopped":
            break
        free_memory()  # while waiting for the next job
    return 0


def _do(asked: Mapping[str, Any], cache: DataCache) -> Mapping[str, Any]:
    try:
        config = overlay(TrainConfig(), asked.get("config", {}), source="the comparison")
        if asked["do"] == "probe":
            return {"pace": asdict(probe(config, cache))}
        if asked["do"] == "doubt":
            until = None if asked["seconds"] is None else time.monotonic() + asked["seconds"]
            configs = {name: overlay(config, own) for name, own in asked["configs"].items()}
            notes = Probes(Path(asked["folder"]), cache, until).warn(configs, asked["scores"], tuned=asked["tuned"])
            return {"notes": [asdict(note) for note in notes]}
        allowance = Allowance(**asked["allowance"]) if "allowance" in asked else None
        record = [Decision(**one) for one in asked.get("record", ())]
        return asdict(train_run(config, Path(asked["path"]), cache, allowance=allowance, record=record))
    except Interrupted as stopped:
        return asdict(Outcome("stopped", str(stopped)))
    except Exception as error:
        traceback.print_exc()
        return {"kind": "failed", "reason": str(error) or type(error).__name__}


def _say_to(log: Path) -> None:
    """Redirect this process' output to the run's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


class Inbox:
    """Reads jobs from the parent, one per line; when the pipe is closed, a running training is stopped.

    Attributes:
        busy: whether a training is running.
    """

    def __init__(self) -> None:
        self.busy = False
        self.asked: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """Wait for a job; None if there are no more."""
        asked = self.asked.get()
        self.busy = asked is not None
        return asked

    def _listen(self) -> None:
        rest = b""
        while part := os.read(0, 65536):  # not sys.stdin, whose lock would be held at exit
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self.asked.put(json.loads(line))
        self.asked.put(None)
        if self.busy:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE)
            os._exit(1)
