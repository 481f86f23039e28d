"""Ask models about pictures under every condition, keeping one number a picture."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import rich.console
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from ..data.draws import seed_of
from ..data.held_out import identity
from ..data.loader import Framing
from ..data.source import Source
from ..data.validation import Validation
from .attacks import Attack, is_right
from .labels import Truth
from .metrics import Answers, picture_scores, read_answers
from .robust import Condition, apply, attack_batch, corruptions, occlusions
from .subjects import EvaluationError, Subject

KEPT = 2**30  # bytes of framed pictures held in memory; of more, files are read once a stage


@dataclass
class Asked:
    """What one model did.

    Args:
        answers: to the clean pictures.
        scores: by condition, N, 0 or 1 each, and what else is a number a picture.
    """

    answers: Answers
    scores: dict[str, np.ndarray] = field(default_factory=dict)


class Bars:
    """A bar a stage, with the time it still takes; nothing if `quiet` or where nobody looks."""

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
        """Start a stage of so many answers."""
        self.progress.update(self.bar, visible=False)
        self.bar = self.progress.add_task(stage, total=total)

    def advance(self, count: int) -> None:
        """Move on by so many answers."""
        self.progress.advance(self.bar, count)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.out.print(text, highlight=False, markup=False, soft_wrap=True)


class Album:
    """Pictures in one framing, batch by batch, with the words that their draws are functions of.

    Args:
        source: the pictures.
        framing: makes them square.
        batch_size: of the batches; no draw depends on it.
        workers: processes that read files.
        seed: of the evaluation.
    """

    def __init__(self, source: Source, framing: Framing, *, batch_size: int, workers: int, seed: int) -> None:
        self.source, self.seed, self.length = source, seed, len(source)
        self.reader = Validation(
            source, framing=framing, batch_size=batch_size, device=torch.device("cpu"), workers=workers
        )
        size = len(source) * framing.channels * framing.img_size**2
        self.kept: list[tuple[Tensor, Tensor]] | None = None
        self.keep = size <= KEPT

    def __iter__(self) -> Iterator[tuple[Tensor, np.ndarray, list[int]]]:
        """Yield pictures, uint8 B, C, H, W, their places and their words."""
        batches: Iterator[tuple[Tensor, Tensor]] = ((pictures, places) for pictures, _, places in self.reader.batches())
        if self.keep:
            if self.kept is None:
                self.kept = list(batches)
            batches = iter(self.kept)
        for pictures, places in batches:
            yield pictures, places.numpy(), [self.word(int(place)) for place in places]

    def word(self, place: int) -> int:
        """Return what a picture's draws are functions of: the seed and its name."""
        return seed_of(self.seed, identity(self.source.name(place)) & (2**63 - 1))


def ask_all(
    subjects: Sequence[Subject],
    truths: Sequence[Truth],
    source: Source,
    *,
    robust: bool,
    attacks: Sequence[Attack],
    batch_size: int,
    workers: int,
    seed: int,
    bars: Bars,
) -> tuple[list[Asked], np.ndarray, dict[str, str]]:
    """Ask every model about every picture under every condition.

    Args:
        subjects: the models.
        truths: the right answers for each.
        source: the pictures.
        robust: occlude, corrupt and attack the pictures as well.
        attacks: to try.
        batch_size: pictures at a time.
        workers: processes that read files.
        seed: of all draws.
        bars: shows how far it is.

    Returns:
        What each did, the places of the pictures that could be read, and why others could not.
    """
    found: dict[int, Asked] = {}
    places, bad = np.arange(0), {}
    for framing in dict.fromkeys(subject.framing for subject in subjects):
        group = [i for i, subject in enumerate(subjects) if subject.framing == framing]
        album = Album(source, framing, batch_size=batch_size, workers=workers, seed=seed)
        asking = _Asking([subjects[i] for i in group], [truths[i] for i in group], album, bars)
        begun = time.monotonic()
        asking.clean()
        if robust:
            covered, spoilt = occlusions(framing.img_size), corruptions(framing.channels)
            back = asking.share_right() * sum(attack.steps * attack.restarts for attack in attacks)
            told = expect(time.monotonic() - begun, passes=len(covered) + len(spoilt), back=back)
            # Runs that see pictures at another size are asked apart, so each group is told of by its names.
            names = ", ".join(subjects[i].name for i in group)
            bars.say(told if len(group) == len(subjects) else f"{names}: {told}")
            asking.changed("occlusions", covered)
            asking.changed("corruptions", spoilt)
            asking.attack(attacks)
        found |= zip(group, asking.finish(), strict=True)
        places, bad = asking.places, album.reader.bad
    return [found[i] for i in range(len(subjects))], places, bad


def expect(seconds: float, *, passes: float, back: float) -> str:
    """Return in words how long the rest may take.

    Args:
        seconds: of one pass forward over all pictures.
        passes: forward still to come.
        back: passes forward and back at most, each as long as three forward.
    """
    minutes = round(seconds * (passes + 3 * back) / 60)
    told = "less than a minute" if minutes < 1 else f"up to about {minutes} minute{'s' * (minutes > 1)}"
    return f"{told} for occlusions, corruptions and attacks; --limit asks about fewer pictures"


class _Asking:
    """Models that see pictures alike, so that what is done to the pictures is done once for all of them."""

    def __init__(self, subjects: Sequence[Subject], truths: Sequence[Truth], album: Album, bars: Bars) -> None:
        self.subjects, self.album, self.bars = subjects, album, bars
        self.valid = [truth.valid for truth in truths]
        self.columns = [torch.from_numpy(truth.columns).to(s.device) for s, truth in zip(subjects, truths, strict=True)]
        self.asked: list[Asked] = []
        self.places = np.arange(0)
        self.scores: list[dict[str, np.ndarray]] = [{} for _ in subjects]

    def clean(self) -> None:
        """Ask about the pictures as they are."""
        self.bars.begin("clean", self.album.length * len(self.subjects))
        logits: list[list[Tensor]] = [[] for _ in self.subjects]
        places = []
        for pictures, place, _ in self.album:
            places.append(place)
            for i in range(len(self.subjects)):
                logits[i].append(self._ask(i, pictures).cpu())
                self.bars.advance(len(place))
        if not places:
            raise EvaluationError("no picture can be read; `saccade data check` names them")
        self.places = np.concatenate(places)
        for i, parts in enumerate(logits):
            self.asked.append(Asked(read_answers(torch.cat(parts).numpy(), self.valid[i][self.places])))
            self._note(i, "clean", self.places, self.asked[i].answers.correct)

    def share_right(self) -> float:
        """Return the share of right answers to the clean pictures; the others are not attacked."""
        return float(np.mean([asked.answers.correct for asked in self.asked]))

    def changed(self, stage: str, conditions: Sequence[Condition]) -> None:
        """Ask about the pictures under conditions."""
        self.bars.begin(stage, len(self.places) * len(conditions) * len(self.subjects))
        with ThreadPoolExecutor() as pool:
            for pictures, place, words in self.album:
                for condition in conditions:
                    changed = apply(condition, pictures, words, pool=pool)
                    for i, valid in enumerate(self.valid):
                        right = is_right(self._ask(i, changed).cpu(), torch.from_numpy(valid[place]))
                        self._note(i, condition.key, place, right.numpy())
                        self.bars.advance(len(place))

    def attack(self, attacks: Sequence[Attack]) -> None:
        """Attack the pictures, each model by its own gradients."""
        self.bars.begin("attacks", len(self.places) * len(self.subjects))
        for pictures, place, words in self.album:
            for i, subject in enumerate(self.subjects):
                outcome = attack_batch(
                    subject,
                    pictures,
                    torch.from_numpy(self.valid[i][place]).to(subject.device),
                    columns=self.columns[i],
                    attacks=attacks,
                    right=torch.from_numpy(self.scores[i]["clean"][place] > 0).to(subject.device),
                    words=words,
                )
                for key, values in outcome.items():
                    self._note(i, key, place, values.cpu().numpy())
                self.bars.advance(len(place))

    def finish(self) -> list[Asked]:
        """Return what each model did, numbers in the order of the pictures that could be read."""
        for asked, scores in zip(self.asked, self.scores, strict=True):
            scores.pop("clean")
            asked.scores = picture_scores(asked.answers) | {key: value[self.places] for key, value in scores.items()}
        return self.asked

    def _ask(self, i: int, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            return self.subjects[i].ask(pictures)[:, self.columns[i]]

    def _note(self, i: int, key: str, place: np.ndarray, values: np.ndarray) -> None:
        """Keep one number a picture, at its place."""
        self.scores[i].setdefault(key, np.zeros(self.album.length))[place] = values
