"""Scores of validation samples: a column for each metric, names of samples, and metric specifications."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..data.spec import InputSpec
from ..tasks.classification.metrics import metric_specs, scores_of_predictions
from ..tasks.metric import GROUP, PLACE, MetricSpec
from ..tasks.opening import find_task
from .weights import save_tensors

NAMES = "names"  # names of the samples, UTF-8, each terminated by a zero byte


@dataclass(frozen=True)
class Scores:
    """Scores of a run's validation samples."""

    columns: Mapping[str, np.ndarray]  # records by column, N, ...
    places: np.ndarray  # indices of the samples, N int64, ascending
    names: tuple[str, ...]  # names of the samples; empty in runs of earlier versions
    metrics: Mapping[str, MetricSpec]  # specifications of the metrics by name
    primary: str  # name of the primary metric
    # whether records are in the original images' pixels; of other tasks and earlier versions they are not
    own_frame: bool = False

    @property
    def groups(self) -> np.ndarray | None:
        """The group of each sample, such as its class, if any."""
        return self.columns.get(GROUP)


def save_scores(
    path: Path, columns: Mapping[str, Tensor], places: Tensor, names: Sequence[str], spec: InputSpec
) -> None:
    """Write scores atomically."""
    text = "".join(f"{name}\0" for name in names).encode()
    tensors = dict(columns)
    tensors |= {PLACE: places, NAMES: torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)}
    kind = find_task(spec.task)
    metrics = [one.to_dict() for one in kind.metrics.metric_specs(spec)]
    about = {"spec": spec.brief(), "metrics": metrics, "primary": kind.metrics.primary_of(spec)}
    save_tensors(path, tensors, metadata={"saccade": json.dumps(about)})


def read_scores(path: Path) -> Scores:
    """Read scores; raise ValueError if they are damaged."""
    try:
        with safe_open(path, framework="numpy") as opened:
            about: dict[str, Any] = json.loads((opened.metadata() or {})["saccade"])
            columns = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no mapping
        spec = InputSpec.from_dict(about["spec"])
        metrics = {one.name: one for one in find_task(spec.task).metrics.metric_specs(spec) if one.column in columns}
        names = columns.pop(NAMES).tobytes().decode().split("\0")[:-1]
        return Scores(columns, columns.pop(PLACE), tuple(names), metrics, about["primary"], spec.own_frame)
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None


def scores_before(kept: Mapping[str, np.ndarray], classes: int) -> Scores:
    """Return the scores of an earlier version's run of single-label classification."""
    columns = scores_of_predictions(kept)
    known = [one for one in metric_specs(classes) if one.column in columns]
    return Scores(columns, columns.pop(PLACE), (), {one.name: one for one in known}, "top1")


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a file of predictions; raise ValueError if it is damaged."""
    try:
        with safe_open(path, framework="numpy") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
