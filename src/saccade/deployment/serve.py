"""`saccade serve`: an HTTP server for models, with a web page."""

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .browse import RunIndex
from .explaining import Explainer
from .limits import Limits
from .predictor import Predictor, open_predictor
from .texts import pack

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

TOKEN = "SACCADE_TOKEN"
STOP_SECONDS = 60  # to finish accepted requests at shutdown
WAITING, ACCEPTED = 1024, 32  # listen backlog, and connections accepted at a time
KEEP_ALIVE_SECONDS = 30  # longer than clients' timeouts, so that no connection is closed during a request


def serve(
    targets: str | Path | Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "cpu",
    kernels: str = "auto",
    token: str | None = None,
    batch_size: int = 32,
    wait_ms: float = 5.0,
    queue: int = 256,
    max_bytes: int = Limits.max_bytes,
    max_pixels: int = Limits.max_pixels,
    upload_seconds: float = Limits.upload_seconds,
    browse: Sequence[str | Path] = (),
    allow_hosts: Sequence[str] = (),
    trust: bool = False,
) -> None:
    """Serve models until a stop signal, then finish accepted requests.

    Args:
        targets: runs, exported files or timm model names, as for `predict`.
        host: address to listen on; the default is only reachable from this machine.
        port: port; 0 selects a free one.
        device: cpu, cuda, cuda:1, ...
        kernels: "auto", "off", or names of `saccade kernels`, "-NAME" for all but one.
        token: token that clients must send as `Authorization: Bearer`; default: the environment variable SACCADE_TOKEN.
        batch_size: largest batch.
        wait_ms: most milliseconds that an image waits for others, if the model is idle.
        queue: most images that wait for a model; further ones get status 503.
        max_bytes: largest upload in bytes.
        max_pixels: largest image in pixels.
        upload_seconds: longest duration of an upload.
        browse: folders with runs and comparisons for the page, besides the served runs.
        allow_hosts: further accepted host names.
        trust: allow .pt2 files, which can run arbitrary code.
    """
    try:
        import uvicorn  # noqa: F401

        from .app import Settings, create_app
    except ImportError as error:
        raise ImportError(f"serving needs {error.name}; install it with pip install 'saccade[serve]'") from None
    paths = [targets] if isinstance(targets, (str, Path)) else list(targets)
    if not paths:
        raise ValueError("no model given; give one or more runs: saccade serve RUN")
    limits = Limits(
        max_bytes=max_bytes,
        max_pixels=max_pixels,
        upload_seconds=upload_seconds,
        memory=max(Limits.memory, 4 * max_bytes),
    )
    names = loopback_names(host)
    settings = Settings(
        batch_size=batch_size,
        wait_ms=wait_ms,
        queue=queue,
        token=token or os.environ.get(TOKEN) or None,
        hosts=(*(names or ()), *(name.lower() for name in allow_hosts)) if names or allow_hosts else None,
        limits=limits,
    )
    runs = RunIndex(browse, [path for path in paths if Path(path).is_dir()])
    with _listen(host, port) as listener:
        models = [_open(path, device=device, kernels=kernels, trust=trust) for path in paths]
        app = create_app(models, settings=settings, runs=runs)
        _announce(listener, app, open_to_all=names is None and settings.token is None)
        run_server(app, listener)


def loopback_names(host: str) -> Sequence[str] | None:
    """Return this machine's names if the address is loopback, else None."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        return None
    own = f"[{address}]" if address.version == 6 else str(address)
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "[::1]", own))) if address.is_loopback else None


def make_server(app: "FastAPI") -> "uvicorn.Server":
    """Return a uvicorn server whose connections have deadlines, linked to the application's state."""
    import uvicorn

    from .connection import Connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            for one in sockets or ():
                # Inherited by connections. asyncio omits it if the listening socket does not name TCP: the end of a
                # response would wait 40 ms for the client to acknowledge its beginning.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await super().startup(sockets=sockets)
            for one in sockets or ():
                one.listen(WAITING)  # uvicorn has set `ACCEPTED`

    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="auto",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=ACCEPTED,
    )
    server = Server(config)
    app.state.server.stopping = lambda: server.should_exit
    return server


def run_server(app: "FastAPI", listener: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT."""
    server = make_server(app)

    def stop(*_: Any) -> None:
        """Handle signals before uvicorn does, and the one that uvicorn raises again after shutdown."""
        server.should_exit = True

    signals = (signal.SIGTERM, signal.SIGINT)
    before = {one: signal.signal(one, stop) for one in signals}
    try:
        server.run(sockets=[listener])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}: it must be from 0 to 65535; 0 picks a free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=WAITING)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from None


def _open(target: str | Path, *, device: str, kernels: str = "auto", trust: bool) -> tuple[Predictor, Explainer | None]:
    predictor = open_predictor(target, device=device, kernels=kernels, trust=trust)
    # Warm up, and fail, before the first request.
    blank = np.zeros((predictor.img_size, predictor.img_size, 3), np.uint8)
    asked = pack(predictor, blank, ("a",) * len(predictor.spec.extra.get("columns", "a")))
    predictor.rows(predictor.codec.stack([asked]))
    explained = predictor.model is not None and predictor.task.reader.reads != "question"
    return predictor, Explainer(target, device=device) if explained else None


def _announce(listener: socket.socket, app: "FastAPI", *, open_to_all: bool) -> None:
    host, port = listener.getsockname()[:2]
    names = ", ".join(one.name for one in app.state.server.models)
    shown = f"[{host}]" if ":" in host else host
    if open_to_all:
        print(
            f"saccade serve: WARNING: any machine that can reach {host} can send requests without a token; set one "
            f"with --token or the environment variable {TOKEN}",
            file=sys.stderr,
            flush=True,
        )
    print(f"saccade serve: {names} at http://{shown}:{port} (stop: Ctrl-C)", flush=True)
