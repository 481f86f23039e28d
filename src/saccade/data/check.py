"""Look at every image of a set and report what would spoil training: damage, wrong names, duplicates, leaks."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..support.wording import count_of
from .image import DIM, EXTENSIONS, MAX_PIXELS, BadSample, Header, decode, header
from .open import Data, open_data
from .source import Source, Stream
from .table import ReadTargets, read_classes

FAULTS = (
    "missing", "unreadable", "truncated", "misnamed", "huge", "range", "mask", "unknown", "size", "box",
    "doubled", "no objects", "dim", "tiny",
)  # of an image by itself  # fmt: skip
MILD = ("no objects",)  # may be as it should
KINDS = (*FAULTS, "duplicate", "two labels", "in both splits")
SMALL_CLASS = 10
CHUNK = 32


@dataclass(frozen=True)
class Finding:
    """Something wrong with an image."""

    kind: str  # one of KINDS
    name: str  # the image
    reason: str  # what is wrong, in plain words
    serious: bool  # whether it spoils training or its result; otherwise it is worth a look


@dataclass(frozen=True)
class DataReport:
    """What was found in a set.

    Args:
        name: of the set.
        task: that its targets are for.
        noun: what the outputs of that task are called.
        counted: what is counted of each: images, or pixels.
        images: how many there are in each split.
        classes: how many training images, or pixels of them, each class has.
        imbalance: the largest class over the smallest.
        small_classes: classes with fewer than ten training images.
        traits: how many images are grey, CMYK, 16-bit, transparent, animated or turned; all of these are read.
        sides: the shortest and the longest side of all images.
        findings: what is wrong.
        notes: remarks of opening the set.
    """

    name: str
    task: str
    noun: str
    counted: str
    images: dict[str, int]
    classes: dict[str, int]
    imbalance: float
    small_classes: tuple[str, ...]
    traits: dict[str, int]
    sides: tuple[int, int]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing serious was found."""
        return not any(finding.serious for finding in self.findings)

    def counts(self) -> dict[str, int]:
        """Return how many findings there are of each kind."""
        found = Counter(finding.kind for finding in self.findings)
        return {kind: found[kind] for kind in KINDS if found[kind]}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {"ok": self.ok, "counts": self.counts(), **asdict(self)}


def check_data(spec: str = "", **options: Any) -> DataReport:
    """Read every image of a set once and report on it.

    Args:
        spec: as `open_data` takes it.
        options: of `look_through`.
    """
    return look_through(spec, **options).report


@dataclass(frozen=True)
class LookedThrough:
    """A set whose images have all been looked at."""

    report: DataReport
    splits: dict[str, Source]
    looks: "list[Look]"


def look_through(
    spec: str = "",
    *,
    val: str | None = None,
    min_side: int = 16,
    max_pixels: int = MAX_PIXELS,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
    read_targets: ReadTargets = read_classes,
    columns: Mapping[str, str] | None = None,
    task: str | None = None,
) -> LookedThrough:
    """Read every image of a set once.

    Args:
        spec: as `open_data` takes it.
        val: as `open_data` takes it.
        min_side: an image with a shorter side is tiny.
        max_pixels: an image with more is huge and not decoded.
        workers: how many threads read.
        progress: called with how many images are done and how many there are.
        read_targets: what the task makes of a list's columns; by default one class a sample.
        columns: of a list, which are read as what.
        task: that the samples are for, where a folder can be read for several.
    """
    data = open_data(spec, val=val, read_targets=read_targets, columns=columns, task=task)
    train = data.train.indexed() if isinstance(data.train, Stream) else data.train
    splits = {"train": train, "val": data.val}
    looks: list[Look] = []
    total = len(train) + len(data.val)
    for look in _look_at_all(splits, max_pixels=max_pixels, workers=workers):
        looks.append(look)
        if progress is not None and (len(looks) % CHUNK == 0 or len(looks) == total):
            progress(len(looks), total)
    return LookedThrough(_report(data, splits, looks, min_side), splits, looks)


def _report(data: Data, splits: dict[str, Source], looks: "list[Look]", min_side: int) -> DataReport:
    """Return what was found in a set whose images have been looked at."""
    train = splits["train"]
    findings = [_bad(bad) for source in splits.values() for bad in source.lost]
    findings += [finding for look in looks for finding in _single(look, splits, min_side)]
    findings += _repeated(looks, splits)
    counts = train.targets.balance()
    sides = [side for look in looks for side in look.shape[:2]]
    return DataReport(
        name=data.name,
        task=train.task,
        noun=train.targets.noun,
        counted=train.targets.counted,
        images={split: len(source) for split, source in splits.items()},
        classes={name: int(count) for name, count in zip(data.outputs, counts, strict=True)},
        imbalance=float(counts.max() / max(counts.min(), 1)),
        small_classes=tuple(name for name, n in zip(data.outputs, counts, strict=True) if n < SMALL_CLASS),
        traits=_traits(looks),
        sides=(min(sides, default=0), max(sides, default=0)),
        findings=tuple(sorted(findings, key=lambda finding: (KINDS.index(finding.kind), finding.name))),
        notes=(*data.notes, *_range(looks)),
    )


class Look(NamedTuple):
    """What one image turned out to be."""

    split: str
    number: int
    shape: tuple[int, ...]  # H, W, C; empty if it cannot be read
    digest: bytes  # of the pixels
    header: Header | None
    bad: BadSample | None
    highest: int = 0  # of the pixels
    wrong: tuple[BadSample, ...] = ()  # with what is told of it


def _look_at_all(splits: dict[str, Source], *, max_pixels: int, workers: int) -> Iterator[Look]:
    def look_at(job: tuple[str, int]) -> list[Look]:
        split, start = job
        stop = min(start + CHUNK, len(splits[split]))
        return [_look(split, splits[split], index, max_pixels) for index in range(start, stop)]

    jobs = [(split, start) for split, source in splits.items() for start in range(0, len(source), CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        for looks in pool.map(look_at, jobs):
            yield from looks


def _look(split: str, source: Source, index: int, max_pixels: int) -> Look:
    name, about = source.name(index), None
    try:
        raw = source.raw(index)
        if raw is None:
            image = source.read(index)
        else:
            about = header(raw, name=name, max_pixels=max_pixels)
            image = decode(raw, name=name, max_pixels=max_pixels)
    except BadSample as bad:
        return Look(split, index, (), b"", about, bad)
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    wrong = tuple(source.targets.problems(index, (image.shape[0], image.shape[1])))
    return Look(split, index, image.shape, digest.digest(), about, None, int(image.max(initial=0)), wrong)


def _bad(bad: BadSample) -> Finding:
    kind = "misnamed" if bad.kind == "foreign" else bad.kind if bad.kind in FAULTS else "unreadable"
    return Finding(kind, bad.name, bad.reason, serious=kind not in MILD)


def _single(look: Look, splits: dict[str, Source], min_side: int) -> Iterator[Finding]:
    """Yield what is wrong with an image by itself."""
    if look.bad is not None:
        yield _bad(look.bad)
        return
    yield from map(_bad, look.wrong)
    name = splits[look.split].name(look.number)
    named = EXTENSIONS.get(Path(name).suffix.lower())
    if look.header is not None and named is not None and named != look.header.format:
        reason = f"it is named {Path(name).suffix} but is {look.header.format}; it can be read"
        yield Finding("misnamed", name, reason, serious=False)
    if look.header is not None and look.header.sixteen_bit and look.highest < DIM:
        reason = f"its 16-bit values go no higher than {256 * look.highest + 255} of 65535; it is read, but dark"
        yield Finding("dim", name, reason, serious=False)
    if min(look.shape[:2]) < min_side:
        yield Finding("tiny", name, f"it is {look.shape[1]} x {look.shape[0]} pixels", serious=False)


def same_pixels(looks: "list[Look]") -> "list[list[Look]]":
    """Return the images whose pixels occur more than once, those of the same pixels together."""
    groups: dict[bytes, list[Look]] = {}
    for look in looks:
        if look.digest:
            groups.setdefault(look.digest, []).append(look)
    return [group for group in groups.values() if len(group) > 1]


def _repeated(looks: list[Look], splits: dict[str, Source]) -> Iterator[Finding]:
    """Yield images whose pixels occur more than once."""
    for group in same_pixels(looks):
        names = [splits[look.split].name(look.number) for look in group]
        labels = {splits[look.split].targets.describe(look.number) for look in group}
        same = f"the same image: {', '.join(names[1:])}"
        if len(labels) > 1:
            classes = ", ".join(sorted(labels))
            yield Finding("two labels", names[0], f"{same}; their classes are {classes}", serious=True)
        if len({look.split for look in group}) > 1:
            yield Finding("in both splits", names[0], f"{same}; some train and some validate", serious=True)
        elif len(labels) == 1:
            yield Finding("duplicate", names[0], same, serious=False)


def _range(looks: list[Look]) -> Iterator[str]:
    """Yield a remark on how bright images of 16 bits are."""
    deep = [look.highest for look in looks if look.bad is None and look.header is not None and look.header.sixteen_bit]
    if deep:
        low, high = 256 * min(deep) + 255, 256 * max(deep) + 255
        yield f"the highest value of {count_of(len(deep), 'image')} of 16 bits is from {low} to {high} of 65535"


def _traits(looks: list[Look]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for look in looks:
        about = look.header
        found["grey"] += look.shape[2:] == (1,) or (about is not None and about.mode in ("1", "L", "LA", "I;16", "I"))
        if about is not None:
            found["cmyk"] += about.mode == "CMYK"
            found["sixteen_bit"] += about.sixteen_bit
            found["transparent"] += about.transparent
            found["animated"] += about.animated
            found["rotated"] += about.orientation not in (0, 1)
    names = ("grey", "cmyk", "sixteen_bit", "transparent", "animated", "rotated")
    return {name: int(found[name]) for name in names}
