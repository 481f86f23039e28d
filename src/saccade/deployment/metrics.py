"""Prometheus metrics of the server."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Metrics of one server; each server in a process has its own registry."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter("saccade_requests_total", "Answered requests.", ("path", "status"), registry=own)
        self.gone = Counter(
            "saccade_clients_gone_total", "Requests whose client disconnected.", ("path",), registry=own
        )
        about = "Time from a request's headers to its response."
        self.seconds = Histogram("saccade_request_seconds", about, ("path",), buckets=SECONDS, registry=own)
        about = "Images that shared a forward pass."
        self.batches = Histogram("saccade_batch_size", about, ("model",), buckets=SIZES, registry=own)
        self.queue = Gauge("saccade_queue_length", "Images waiting for a batch.", ("model",), registry=own)

    def watch(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Add a gauge that is computed when it is read."""
        Gauge(name, about, registry=self.registry).set_function(read)

    def text(self) -> str:
        """Return all metrics as text."""
        return generate_latest(self.registry).decode("utf-8")
