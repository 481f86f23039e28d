"""Counters, gauges and histograms as Prometheus reads them (text format 0.0.4)."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
Labels = tuple[str, ...]


class Counter:
    """What only grows, by labels."""

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, labels
        self.values: dict[Labels, float] = {}

    def add(self, *labels: str, amount: float = 1) -> None:
        """Add to a value."""
        self.values[labels] = self.values.get(labels, 0) + amount

    def lines(self) -> list[str]:
        """Return the text."""
        rows = [f"{self.name}{_labels(self.labels, labels)} {value:g}" for labels, value in sorted(self.values.items())]
        return [*_head(self.name, self.about, "counter"), *rows]


class Gauge:
    """What is read when it is asked for, by one label."""

    def __init__(self, name: str, about: str, read: Callable[[], dict[Labels, float]], labels: Sequence[str]) -> None:
        self.name, self.about, self.read, self.labels = name, about, read, labels

    def lines(self) -> list[str]:
        """Return the text."""
        rows = [f"{self.name}{_labels(self.labels, labels)} {value:g}" for labels, value in self.read().items()]
        return [*_head(self.name, self.about, "gauge"), *rows]


class Histogram:
    """How often what was measured fell below each of some bounds, by labels."""

    def __init__(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.bounds, self.labels = name, about, bounds, labels
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        counts = self.counts.setdefault(labels, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[labels] = self.sums.get(labels, 0.0) + value

    def lines(self) -> list[str]:
        """Return the text."""
        rows = _head(self.name, self.about, "histogram")
        for labels, counts in sorted(self.counts.items()):
            total = 0
            for bound, count in zip((*[f"{bound:g}" for bound in self.bounds], "+Inf"), counts, strict=True):
                total += count
                rows.append(f"{self.name}_bucket{_labels((*self.labels, 'le'), (*labels, bound))} {total}")
            rows.append(f"{self.name}_sum{_labels(self.labels, labels)} {self.sums[labels]:g}")
            rows.append(f"{self.name}_count{_labels(self.labels, labels)} {total}")
        return rows


class Metrics:
    """What a server counts."""

    def __init__(self) -> None:
        self.requests = Counter("saccade_requests_total", "Answered requests.", ("path", "status"))
        self.gone = Counter("saccade_clients_gone_total", "Requests whose client hung up.", ("path",))
        self.seconds = Histogram(
            "saccade_request_seconds", "From a request's headers to its answer.", SECONDS, ("path",)
        )
        self.batches = Histogram("saccade_batch_size", "Pictures that shared a forward pass.", SIZES, ("model",))
        self.gauges: list[Gauge] = []

    def text(self) -> str:
        """Return all of it."""
        parts: list[Counter | Gauge | Histogram] = [self.requests, self.gone, self.seconds, self.batches, *self.gauges]
        return "\n".join(line for part in parts for line in part.lines()) + "\n"


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_quote(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _quote(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
