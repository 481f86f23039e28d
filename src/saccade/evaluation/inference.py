"""Run models on images under every condition and pass the outputs to their judges."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import rich.console
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..data.cache import framed_bytes
from ..data.draws import derive_seed
from ..data.feed import Batch
from ..data.image import Fault
from ..data.source import Source
from ..data.split import identity
from ..data.validation import Validation
from .judge import CLEAN, Judge
from .opening import EvaluatedModel, EvaluationError
from .robust import Condition, apply, corruptions, occlusions

MAX_CACHED_BYTES = 2**30  # most bytes of framed images in memory; above that, files are read again for each stage


class ProgressBars:
    """A progress bar for each stage; nothing if `quiet` or not in a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.out = rich.console.Console(stderr=True, quiet=quiet)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.out,
            transient=True,
            disable=quiet or not self.out.is_terminal,
        )
        self.bar = self.progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """Start a stage of `total` outputs."""
        self.progress.update(self.bar, visible=False)
        self.bar = self.progress.add_task(stage, total=total)

    def advance(self, count: int) -> None:
        """Advance by `count` outputs."""
        self.progress.advance(self.bar, count)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.out.print(text, highlight=False, markup=False, soft_wrap=True)


class FramedImages:
    """Batches of framed samples with the samples' random keys."""

    def __init__(self, source: Source, model: EvaluatedModel, *, batch_size: int, workers: int, seed: int) -> None:
        self.source, self.seed, self.length = source, seed, len(source)
        framing = model.spec.framing
        self.reader = Validation(
            source,
            encode=model.loaded.task.codec(model.spec).encoder(),
            framing=framing,
            batch_size=batch_size,
            device=torch.device("cpu"),
            workers=workers,
        )
        self.kept: list[Batch] | None = None
        self.keep = framed_bytes(len(source), framing) <= MAX_CACHED_BYTES

    def __iter__(self) -> Iterator[tuple[Batch, list[int]]]:
        """Yield batches, images uint8 B, C, H, W, and the samples' random keys."""
        if self.keep and self.kept is None:
            self.kept = list(self.reader.batches())
        for batch in self.kept or self.reader.batches():
            yield batch, [self._rng_key(int(place)) for place in batch["place"]]

    def _rng_key(self, place: int) -> int:
        """Return a sample's random key, derived from the seed and its name."""
        return derive_seed(self.seed, identity(self.source.name(place)) & (2**63 - 1))


def collect_outputs(
    judges: Sequence[Judge],
    source: Source,
    *,
    robust: bool,
    attacked: bool,
    batch_size: int,
    workers: int,
    seed: int,
    bars: ProgressBars,
) -> tuple[np.ndarray, dict[str, Fault]]:
    """Run every model on every sample under every condition; the judges record the outputs.

    Returns:
        The indices of readable samples, and the faults of the others.
    """
    places, bad = np.arange(0), {}
    for framing in dict.fromkeys(judge.model.spec.framing for judge in judges):
        group = [judge for judge in judges if judge.model.spec.framing == framing]
        images = FramedImages(source, group[0].model, batch_size=batch_size, workers=workers, seed=seed)
        started = time.monotonic()
        places, bad = _run_clean(group, images, bars), images.reader.bad
        if not robust:
            continue
        takes, more = group[0].takes, group[0].conditions()
        covered, spoilt = (
            [condition for condition in found if takes(condition)]
            for found in (occlusions(framing.img_size), corruptions(framing.channels))
        )
        back = float(np.mean([judge.passes_back() for judge in group])) if attacked else 0.0
        passes = len(covered) + len(spoilt) + len(more)
        text = describe_remaining(time.monotonic() - started, passes=passes, back=back, attacked=attacked)
        # Models with different image sizes run separately, so each group is reported by its names.
        names = ", ".join(judge.model.name for judge in group)
        bars.say(text if len(group) == len(judges) else f"{names}: {text}")
        for stage, conditions in (("occlusions", covered), ("corruptions", spoilt), ("noise", more)):
            if not conditions:
                continue
            bars.begin(stage, len(places) * len(conditions) * len(group))
            _run_changed(group, images, conditions, bars)
        if attacked:
            bars.begin("attacks", len(places) * len(group))
            for batch, rng_keys in images:
                for judge in group:
                    judge.attack(batch, rng_keys)
                    bars.advance(len(rng_keys))
    return places, bad


def describe_remaining(seconds: float, *, passes: float, back: float, attacked: bool = True) -> str:
    """Return a remark on the remaining time.

    Args:
        seconds: duration of one forward pass over all samples.
        passes: remaining forward passes.
        back: most remaining forward and backward passes, each as long as three forward passes.
        attacked: whether attacks are among them.
    """
    minutes = round(seconds * (passes + 3 * back) / 60)
    text = "less than a minute" if minutes < 1 else f"up to about {minutes} minute{'s' * (minutes > 1)}"
    what = "occlusions, corruptions and attacks" if attacked else "occlusions and corruptions"
    return f"{text} for {what}; --limit evaluates fewer samples"


def _run_clean(judges: Sequence[Judge], images: FramedImages, bars: ProgressBars) -> np.ndarray:
    """Run the models on clean images; return the indices of readable ones."""
    bars.begin(CLEAN, images.length * len(judges))
    places = []
    for batch, rng_keys in images:
        places.append(batch["place"].numpy())
        for judge in judges:
            judge.take(CLEAN, batch, batch.get("image"))
            bars.advance(len(rng_keys))
    if not places:
        raise EvaluationError("no sample can be read; `saccade data check` lists the reasons")
    return np.sort(np.concatenate(places))


def _run_changed(
    judges: Sequence[Judge], images: FramedImages, conditions: Sequence[Condition], bars: ProgressBars
) -> None:
    """Run the models on changed images; each change is computed once for all models."""
    with ThreadPoolExecutor() as pool:
        for batch, rng_keys in images:
            for condition in conditions:
                changed = apply(condition, batch["image"], rng_keys, pool=pool)
                for judge in judges:
                    judge.take(condition.key, batch, changed)
                    bars.advance(len(rng_keys))
