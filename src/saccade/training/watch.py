"""A live page of a training run, which reloads itself without scripts."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.draws import key
from ..data.image import BadSample
from ..data.source import Stream
from ..report.image import encode_image
from ..report.markup import Html, join, tag
from ..report.page import Section, paragraph, render_page
from ..runs.run import Run, RunError
from ..settings import ConfigError, TrainConfig
from ..support.durations import say_duration
from ..support.wording import count_of
from ..tasks.opening import open_samples
from .report import render_live
from .resolve import resolve

SAMPLES_SHOWN = 12  # augmented images to show
QUIET = 120.0  # least seconds without progress after which a run is reported as silent
SILENT = 5  # likewise, in epochs
LOCAL = ("127.0.0.1", "localhost", "::1")


def watch(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8010,
    every: float = 5.0,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the live page of a run until Ctrl-C.

    Args:
        path: folder of the run, which may be started later.
        host: address to listen on.
        port: 0 selects a free one.
        every: seconds between reloads.
        say: prints the page's address.
    """
    server = make_server(Path(path).expanduser(), host=host, port=port, every=every)
    with server:
        later = "" if Path(path).expanduser().exists() else " (waiting for it to exist)"
        say(f"http://{host}:{server.server_port}/ follows {path}{later}; stop with Ctrl-C")
        server.serve_forever()


def make_server(path: Path, *, host: str = "127.0.0.1", port: int = 0, every: float = 5.0) -> ThreadingHTTPServer:
    """Return a server of the page that is listening but not yet running; arguments as for `watch`."""
    if not 0.5 <= every <= 3600:
        raise ConfigError(f"--every {every} was given; it must be from 0.5 to 3600 seconds")
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} was given; it must be from 0 to 65535; 0 picks a free one")
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / "config.yaml").exists()):
        raise ConfigError(
            f"{path} has no config.yaml, so it is not a run; give the directory that `saccade train` writes"
        )
    watched = Watched(path)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            name = (self.headers.get("Host") or "").rsplit(":", 1)[0].strip("[]").lower()
            if host in LOCAL and name not in LOCAL:  # DNS rebinding: a foreign host name that resolves to this machine
                self._send(HTTPStatus.MISDIRECTED_REQUEST, f"This server is not called {name}.\n", kind="text/plain")
            elif self.path != "/":
                self._send(HTTPStatus.NOT_FOUND, "The only page here is /\n", kind="text/plain")
            else:
                page, ended = watched.page()
                self._send(HTTPStatus.OK, page, again=None if ended else every)

        def _send(self, status: HTTPStatus, text: str, *, kind: str = "text/html", again: float | None = None) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if again is not None:
                self.send_header("Refresh", f"{again:g}")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log requests."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} ({error.strerror}); give another --port") from None


class Watched:
    """A run that may still be training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.examples: list[Section] | None = None

    def page(self) -> tuple[str, bool]:
        """Return the page and whether the run has ended."""
        try:
            run = Run.open(self.path)
            config, records = run.config(), run.metrics()
        except (RunError, OSError, ConfigError) as error:
            waits = paragraph(f"Nothing to follow yet: {error}", class_="lead")
            return render_page(self.path.name or "run", [], kind="Training", lead=waits), False
        if self.examples is None:
            self.examples = augmented(config)
        ended = run.finished()
        return render_live(run, paragraph(state_of(run, config, records), class_="lead"), self.examples), ended


def state_of(run: Run, config: TrainConfig, records: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on a run's progress and remaining time."""
    total = (records[-1] if records else {}).get("shortened_to", config.schedule.epochs)
    if run.finished():
        return f"Finished after {count_of(len(records), 'epoch')}."
    if not records:
        return f"No epoch of {total} is finished yet."
    done = int(records[-1]["epoch"])
    seconds = [float(record["seconds"]) for record in records[-10:] if record.get("seconds")]
    epoch = statistics.median(seconds) if seconds else 0.0
    silence = time.time() - run.metrics_file.stat().st_mtime
    if silence > max(QUIET, SILENT * epoch):
        return (
            f"Epoch {done} of {total}; nothing has been written for {say_duration(silence)}: it may have been "
            f"stopped. Resume with saccade train --resume {run.path}"
        )
    return f"Epoch {done} of {total}; about {say_duration(epoch * (total - done))} left."


def augmented(config: TrainConfig) -> list[Section]:
    """Return a section of augmented training images, if they can be shown."""
    try:
        choice, data = open_samples(config.task, config.data)
        if isinstance(data.train, Stream) or choice.kind.reader.reads != "image":
            return []
        config, spec = resolve(config, choice, data, torch.device("cpu"))
        encode = choice.kind.codec(spec).encoder(config.augment)
        places = np.unique(np.linspace(0, len(data.train) - 1, SAMPLES_SHOWN).astype(int)).tolist()
        words = [int(key(config.seed, place)) for place in places]
        batch = encode.collate([encode(data.train.sample(p), word) for p, word in zip(places, words, strict=True)])
        expand: Any = choice.kind.codec(spec).expander(config.augment, config.loss, device=torch.device("cpu"))
        if hasattr(expand, "after_framing"):
            expand = expand.after_framing()
        images = expand({**batch, "key": torch.tensor(words)})["image"]
    except (OSError, ValueError, BadSample, RuntimeError):
        return []
    mean, std = (torch.tensor(list(values)).view(-1, 1, 1) for values in (spec.mean, spec.std))
    pixels = ((images.float() * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    figures = [_figure(pixel, data.train.name(place)) for pixel, place in zip(pixels, places, strict=True)]
    about = "Some training images as the model sees them: cropped, recoloured and mixed as in an epoch."
    return [Section("augmented", "Images as augmented", join(paragraph(about), tag("ul", *figures, class_="pictures")))]


def _figure(pixels: np.ndarray, name: str) -> Html:
    image = encode_image(pixels, alt=f"{name}, augmented")
    return tag("li", tag("div", image, class_="frame"), paragraph(name, class_="name"))
