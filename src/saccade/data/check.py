"""Scan every image of a dataset and report problems: damage, wrong names, duplicates, leaks."""

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
)  # problems of a single image  # fmt: skip
MILD = ("no objects",)  # may be intended
KINDS = (*FAULTS, "duplicate", "two labels", "in both splits")
SMALL_CLASS = 10
CHUNK = 32


@dataclass(frozen=True)
class Finding:
    """A problem of an image."""

    kind: str  # one of KINDS
    name: str  # the image
    reason: str  # as shown to the user
    serious: bool  # whether it harms training or its result


@dataclass(frozen=True)
class DataReport:
    """Result of scanning a dataset.

    Args:
        name: name of the dataset.
        task: name of the task.
        noun: the word for the task's outputs, such as "class".
        counted: unit of `classes`: images, or pixels.
        images: number of images in each split.
        classes: training images, or their pixels, of each class.
        imbalance: size of the largest class divided by that of the smallest.
        small_classes: classes with fewer than ten training images.
        traits: number of grey, CMYK, 16-bit, transparent, animated and rotated images; all of these can be read.
        sides: the shortest and the longest side of all images.
        findings: the problems.
        notes: remarks made while the dataset was opened.
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
        """Return the number of findings of each kind."""
        found = Counter(finding.kind for finding in self.findings)
        return {kind: found[kind] for kind in KINDS if found[kind]}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {"ok": self.ok, "counts": self.counts(), **asdict(self)}


def check_data(spec: str = "", **options: Any) -> DataReport:
    """Scan a dataset and return the report.

    Args:
        spec: as `open_data` takes it.
        options: arguments of `scan_dataset`.
    """
    return scan_dataset(spec, **options).report


@dataclass(frozen=True)
class ScannedDataset:
    """A dataset with the scans of all of its images."""

    report: DataReport
    splits: dict[str, Source]
    scans: "list[ImageScan]"


def scan_dataset(
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
) -> ScannedDataset:
    """Read every image of a dataset once.

    Args:
        spec: as `open_data` takes it.
        val: as `open_data` takes it.
        min_side: images with a shorter side are reported as tiny.
        max_pixels: larger images are reported as huge and not decoded.
        workers: number of reading threads.
        progress: called with the number of images done and the total.
        read_targets: function that makes targets of a list's columns; by default one class a sample.
        columns: column names by role, see `open_data`.
        task: task to read the samples for, where a folder fits several.
    """
    data = open_data(spec, val=val, read_targets=read_targets, columns=columns, task=task)
    train = data.train.indexed() if isinstance(data.train, Stream) else data.train
    splits = {"train": train, "val": data.val}
    scans: list[ImageScan] = []
    total = len(train) + len(data.val)
    for scan in _scan_all(splits, max_pixels=max_pixels, workers=workers):
        scans.append(scan)
        if progress is not None and (len(scans) % CHUNK == 0 or len(scans) == total):
            progress(len(scans), total)
    return ScannedDataset(_report(data, splits, scans, min_side), splits, scans)


def _report(data: Data, splits: dict[str, Source], scans: "list[ImageScan]", min_side: int) -> DataReport:
    """Return the report of scanned images."""
    train = splits["train"]
    findings = [_bad(bad) for source in splits.values() for bad in source.lost]
    findings += [finding for scan in scans for finding in _single(scan, splits, min_side)]
    findings += _repeated(scans, splits)
    counts = train.targets.balance()
    sides = [side for scan in scans for side in scan.shape[:2]]
    return DataReport(
        name=data.name,
        task=train.task,
        noun=train.targets.noun,
        counted=train.targets.counted,
        images={split: len(source) for split, source in splits.items()},
        classes={name: int(count) for name, count in zip(data.outputs, counts, strict=True)},
        imbalance=float(counts.max() / max(counts.min(), 1)),
        small_classes=tuple(name for name, n in zip(data.outputs, counts, strict=True) if n < SMALL_CLASS),
        traits=_traits(scans),
        sides=(min(sides, default=0), max(sides, default=0)),
        findings=tuple(sorted(findings, key=lambda finding: (KINDS.index(finding.kind), finding.name))),
        notes=(*data.notes, *_range(scans)),
    )


class ImageScan(NamedTuple):
    """Result of reading one image."""

    split: str
    number: int
    shape: tuple[int, ...]  # H, W, C; empty if it cannot be read
    digest: bytes  # of the pixels
    header: Header | None
    bad: BadSample | None
    highest: int = 0  # of the pixels
    wrong: tuple[BadSample, ...] = ()  # problems of its target


def _scan_all(splits: dict[str, Source], *, max_pixels: int, workers: int) -> Iterator[ImageScan]:
    def scan_chunk(job: tuple[str, int]) -> list[ImageScan]:
        split, start = job
        stop = min(start + CHUNK, len(splits[split]))
        return [_scan(split, splits[split], index, max_pixels) for index in range(start, stop)]

    jobs = [(split, start) for split, source in splits.items() for start in range(0, len(source), CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        for scans in pool.map(scan_chunk, jobs):
            yield from scans


def _scan(split: str, source: Source, index: int, max_pixels: int) -> ImageScan:
    name, about = source.name(index), None
    try:
        raw = source.raw(index)
        if raw is None:
            image = source.read(index)
        else:
            about = header(raw, name=name, max_pixels=max_pixels)
            image = decode(raw, name=name, max_pixels=max_pixels)
    except BadSample as bad:
        return ImageScan(split, index, (), b"", about, bad)
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    wrong = tuple(source.targets.problems(index, (image.shape[0], image.shape[1])))
    return ImageScan(split, index, image.shape, digest.digest(), about, None, int(image.max(initial=0)), wrong)


def _bad(bad: BadSample) -> Finding:
    kind = "misnamed" if bad.kind == "foreign" else bad.kind if bad.kind in FAULTS else "unreadable"
    return Finding(kind, bad.name, bad.reason, serious=kind not in MILD)


def _single(scan: ImageScan, splits: dict[str, Source], min_side: int) -> Iterator[Finding]:
    """Yield the problems of a single image."""
    if scan.bad is not None:
        yield _bad(scan.bad)
        return
    yield from map(_bad, scan.wrong)
    name = splits[scan.split].name(scan.number)
    named = EXTENSIONS.get(Path(name).suffix.lower())
    if scan.header is not None and named is not None and named != scan.header.format:
        reason = f"its extension is {Path(name).suffix} but it is {scan.header.format}; it can be read"
        yield Finding("misnamed", name, reason, serious=False)
    if scan.header is not None and scan.header.sixteen_bit and scan.highest < DIM:
        reason = f"its 16-bit values only reach {256 * scan.highest + 255} of 65535; it can be read, but is dark"
        yield Finding("dim", name, reason, serious=False)
    if min(scan.shape[:2]) < min_side:
        yield Finding("tiny", name, f"it is {scan.shape[1]} x {scan.shape[0]} pixels", serious=False)


def same_pixels(scans: "list[ImageScan]") -> "list[list[ImageScan]]":
    """Return groups of images with identical pixels."""
    groups: dict[bytes, list[ImageScan]] = {}
    for scan in scans:
        if scan.digest:
            groups.setdefault(scan.digest, []).append(scan)
    return [group for group in groups.values() if len(group) > 1]


def _repeated(scans: list[ImageScan], splits: dict[str, Source]) -> Iterator[Finding]:
    """Yield findings on duplicate images."""
    for group in same_pixels(scans):
        names = [splits[scan.split].name(scan.number) for scan in group]
        labels = {splits[scan.split].targets.describe(scan.number) for scan in group}
        same = f"the same image: {', '.join(names[1:])}"
        if len(labels) > 1:
            classes = ", ".join(sorted(labels))
            yield Finding("two labels", names[0], f"{same}; their classes are {classes}", serious=True)
        if len({scan.split for scan in group}) > 1:
            yield Finding(
                "in both splits",
                names[0],
                f"{same}; some are in the training split and some in the validation split",
                serious=True,
            )
        elif len(labels) == 1:
            yield Finding("duplicate", names[0], same, serious=False)


def _range(scans: list[ImageScan]) -> Iterator[str]:
    """Yield a remark on the brightness of 16-bit images."""
    deep = [scan.highest for scan in scans if scan.bad is None and scan.header is not None and scan.header.sixteen_bit]
    if deep:
        low, high = 256 * min(deep) + 255, 256 * max(deep) + 255
        yield f"the highest values of {count_of(len(deep), 'image')} with 16 bits range from {low} to {high} of 65535"


def _traits(scans: list[ImageScan]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for scan in scans:
        about = scan.header
        found["grey"] += scan.shape[2:] == (1,) or (about is not None and about.mode in ("1", "L", "LA", "I;16", "I"))
        if about is not None:
            found["cmyk"] += about.mode == "CMYK"
            found["sixteen_bit"] += about.sixteen_bit
            found["transparent"] += about.transparent
            found["animated"] += about.animated
            found["rotated"] += about.orientation not in (0, 1)
    names = ("grey", "cmyk", "sixteen_bit", "transparent", "animated", "rotated")
    return {name: int(found[name]) for name in names}
