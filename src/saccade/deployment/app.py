"""The FastAPI application of the server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from ..report.heat import heat_css
from ..report.plain import to_json
from ..tasks.text.tokens import TextError
from .batching import Batcher, ClientGone
from .browse import RunIndex
from .explaining import Explainer
from .guard import Guard
from .limits import Limits, Refusal, UploadMemory, Uploads
from .metrics import CONTENT_TYPE, Metrics
from .predictor import Predictor, each_row
from .schema import BODY, EXPLAINED, PREDICTED, REFUSALS
from .texts import pack, read_text
from .upload import Decoder, Form, check_type, read_form

PAGES = {"index.html": "/", "docs.html": "/docs"}  # other files of the page are under /page/
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HUNG_UP = 499  # status of abandoned requests, only for metrics
OPEN = ("/health", "/ready", "/openapi.json")
CLOSED = ("/predict", "/explain", "/model", "/metrics", "/runs")
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MAX_CLASSES = 1000  # most classes in a response
NAMED = 20  # most models listed in an error

Which = Annotated[str | None, Query(max_length=400, description="a model listed by /model, by number or name")]
Top = Annotated[
    int | None, Query(ge=1, le=MAX_CLASSES, description="number of classes or other parts of an answer (default: 5)")
]
Views = Annotated[str | None, Query(max_length=400, description="keys of views, separated by commas (default: all)")]


@dataclass(frozen=True)
class Settings:
    """Settings of a server."""

    batch_size: int = 32  # most images in a forward pass
    wait_ms: float = 5.0  # most milliseconds that an image waits for others
    queue: int = 256  # most images that wait for a model
    token: str | None = None  # bearer token that clients must send; None: no authentication
    hosts: Sequence[str] | None = None  # accepted host names; None: all
    limits: Limits = field(default_factory=Limits)  # limits on uploads


class Served:
    """A served model: its name, its queue, and its explainer, if it has one."""

    def __init__(
        self, name: str, predictor: Predictor, *, settings: Settings, metrics: Metrics, explainer: Explainer | None
    ) -> None:
        self.name, self.predictor, self.explainer = name, predictor, explainer
        self.batcher = Batcher(
            partial(each_row, predictor),
            batch_size=settings.batch_size,
            wait_ms=settings.wait_ms,
            queue=settings.queue,
            on_batch=metrics.batches.labels(name).observe,
            stack=list,
        )
        metrics.queue.labels(name).set_function(lambda: len(self.batcher))

    def about(self) -> dict[str, Any]:
        """Return the model's description."""
        reads = {"reads": self.predictor.task.reader.reads, "texts": len(self.predictor.spec.extra.get("columns", []))}
        return {**self.predictor.about(), **reads, "name": self.name, "explain": self.explainer is not None}

    def answer(self, row: np.ndarray, size: tuple[int, int], top: int) -> dict[str, Any]:
        """Return the response to an image of the given size: fields for programs, and rows for the page."""
        task, presenter = self.predictor.task, self.predictor.presenter
        answer = presenter.describe(self.predictor.codec.unframe(row, size), top=top)
        rows = [
            {"name": name, "text": text, **answer.measured(share), "said": name in answer.said}
            for name, text, share in answer.rows
        ]
        record = {
            "model": self.name,
            "task": task.name,
            "text": answer.text,
            **presenter.served_record(answer),
            "rows": rows,
        }
        return to_json(record)


class ServerState:
    """State shared by the handlers."""

    def __init__(
        self, predictors: Sequence[tuple[Predictor, Explainer | None]], *, settings: Settings, runs: RunIndex
    ) -> None:
        self.settings, self.runs, self.metrics = settings, runs, Metrics()
        self.uploads, self.decoder = Uploads(settings.limits), Decoder(settings.limits)
        self.models: list[Served] = []
        self.stopping: Callable[[], bool] = bool  # whether the server is shutting down; set by `make_server`
        for predictor, explainer in predictors:
            taken = sum(one.predictor.name == predictor.name for one in self.models)
            name = f"{predictor.name} ({taken + 1})" if taken else predictor.name
            self.models.append(Served(name, predictor, settings=settings, metrics=self.metrics, explainer=explainer))
        self.metrics.watch("saccade_upload_bytes", "Bytes of uploads in memory.", lambda: self.uploads.held)
        self.metrics.watch("saccade_received_bytes", "Bytes of uploads so far.", lambda: self.uploads.received)

    async def take(
        self, request: Request, room: UploadMemory, query: dict[str, Any]
    ) -> tuple[Form, Served, dict[str, Any]]:
        """Read a request: form, model and options; form fields take precedence over the query."""
        content_type = request.headers.get("content-type", "")
        check_type(content_type)
        self.choose(query["model"]).batcher.check()
        body = await self.uploads.read(request.stream(), room, announced=request.headers.get("content-length"))
        form = read_form(body, content_type)
        options: dict[str, Any] = {
            "top": _whole(form.fields, "top", query.get("top"), least=1, most=MAX_CLASSES),
            "views": form.fields.get("views") or query.get("views"),
        }
        return form, self.choose(form.fields.get("model", query["model"])), options

    async def read(self, form: Form, served: Served) -> tuple[Any, tuple[int, int]]:
        """Return a model's input, framed or tokenized, and the image's original height and width."""
        predictor = served.predictor
        texts = () if predictor.task.reader.reads == "image" else read_text(form.fields, predictor)
        if predictor.task.reader.reads == "text":
            return await asyncio.to_thread(pack, predictor, None, texts), (0, 0)
        return await self.decode(form, served, lambda pixels: (pack(predictor, pixels, texts), pixels.shape[:2]))

    async def read_whole(self, form: Form, served: Served) -> Any:
        """Return a model's input as given: pixels, or a text."""
        if served.predictor.task.reader.reads == "text":
            return "\t".join(read_text(form.fields, served.predictor))
        return await self.decode(form, served, lambda pixels: pixels)

    async def decode(self, form: Form, served: Served, then: Callable[[np.ndarray], Any]) -> Any:
        """Decode the form's image and apply `then`; refuse a form without an image."""
        if form.image is None:
            raise Refusal(422, f"{served.name} reads images; send one in the field `file`")
        return await self.decoder(form.image, then)

    def choose(self, which: str | None) -> Served:
        """Return a model by number or name; default: the first."""
        numbers = {str(number): one for number, one in enumerate(self.models)}
        names = {one.name: one for one in self.models}
        found = self.models[0] if which is None else numbers.get(which) or names.get(which)
        if found is None:
            there = ", ".join(f"{number} ({one.name})" for number, one in list(numbers.items())[:NAMED])
            more = ", ..." if len(numbers) > NAMED else ""
            raise Refusal(
                422, f"model = {str(which)[:80]!r}: no such model; available by number or name: {there}{more}"
            )
        return found


def create_app(
    predictors: Sequence[tuple[Predictor, Explainer | None]],
    *,
    settings: Settings | None = None,
    runs: RunIndex | None = None,
) -> FastAPI:
    """Return the application that serves models; `app.state.server` is the state shared by handlers."""
    state = ServerState(predictors, settings=settings or Settings(), runs=runs or RunIndex())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        for one in state.models:
            one.batcher.start()
        yield
        for one in state.models:
            await one.batcher.stop()
            if one.explainer is not None:
                one.explainer.close()
        state.decoder.close()

    app = FastAPI(
        title="saccade",
        summary="Predicts what is in an image, and explains the prediction.",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=life,
    )
    app.state.server = state
    _add_questions(app, state)
    _add_facts(app, state)
    files = read_files()
    _add_page(app, files)
    _add_refusals(app, state)
    app.add_middleware(
        Guard,
        metrics=state.metrics,
        paths=(*OPEN, *CLOSED, *files),
        free=(*OPEN, *files),
        token=state.settings.token,
        hosts=state.settings.hosts,
        stopping=lambda: state.stopping(),
    )
    return app


def _add_questions(app: FastAPI, state: ServerState) -> None:
    @app.post("/predict", openapi_extra=BODY, responses={200: PREDICTED, **REFUSALS})
    async def predict(request: Request, model: Which = None, top: Top = None) -> Response:
        """Predict an image. Concurrent requests share a forward pass."""
        with state.uploads.room() as room:
            form, served, options = await state.take(request, room, {"model": model, "top": top})
            with served.batcher.coming():
                image, size = await state.read(form, served)
        row = await served.batcher.submit(image, disconnected=request.is_disconnected)
        return JSONResponse(await asyncio.to_thread(served.answer, row, size, options["top"] or 5))

    @app.post("/explain", openapi_extra=BODY, responses={200: EXPLAINED, **REFUSALS})
    async def explain(request: Request, model: Which = None, views: Views = None) -> Response:
        """Explain a prediction: views with their figures, as data URIs and HTML."""
        with state.uploads.room() as room:
            form, served, options = await state.take(request, room, {"model": model, "views": views})
            if served.explainer is None:
                raise Refusal(
                    422, f"{served.name} is a {served.predictor.kind}, whose predictions cannot be explained; use a run"
                )
            served.explainer.check()
            pixels = await state.read_whole(form, served)
        keys = [key.strip() for key in (options["views"] or "").split(",") if key.strip()] or None
        explained = await served.explainer.explain(pixels, views=keys, disconnected=request.is_disconnected)
        return JSONResponse({"model": served.name, **explained})


def _add_facts(app: FastAPI, state: ServerState) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """Liveness: 200 while the server works."""
        alive = all(one.batcher.alive for one in state.models)
        return JSONResponse({"status": "ok" if alive else "a worker has stopped"}, 200 if alive else 503)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Readiness: 200 unless the server is stopping or a queue is full."""
        full = any(len(one.batcher) >= one.batcher.limit for one in state.models)
        status = "stopping" if state.stopping() else "busy" if full else "ready"
        headers = {} if status == "ready" else {"Retry-After": "1"}
        return JSONResponse({"status": status}, 200 if status == "ready" else 503, headers)

    @app.get("/model")
    async def model() -> JSONResponse:
        """List the models and the limits."""
        limits = state.settings.limits
        models = [{"index": index, **one.about()} for index, one in enumerate(state.models)]
        return JSONResponse(
            {"models": models, "limits": {"max_bytes": limits.max_bytes, "max_pixels": limits.max_pixels}}
        )

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Return metrics in Prometheus' format."""
        return PlainTextResponse(state.metrics.text(), media_type=CONTENT_TYPE)

    looking = asyncio.Lock()  # one search of the disk at a time

    @app.get("/runs")
    async def runs() -> JSONResponse:
        """List the runs and comparisons."""
        async with looking:
            items = await asyncio.to_thread(state.runs.items)
        return JSONResponse({"runs": [item._asdict() for item in items]})

    @app.get("/reports/{key}", responses={404: {"description": "No such report."}})
    async def report(key: str) -> Response:
        """Return the report of a run or comparison by its id from /runs."""
        page = await asyncio.to_thread(state.runs.report, key)
        if page is None:
            raise Refusal(404, "no such report; /runs lists the available ones")
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


def _add_page(app: FastAPI, files: dict[str, tuple[str, bytes]]) -> None:
    for path, (kind, content) in files.items():

        async def file(_: Request, kind: str = kind, content: bytes = content) -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

        app.router.routes.append(Route(path, file, include_in_schema=False))


def _add_refusals(app: FastAPI, state: ServerState) -> None:
    @app.exception_handler(Refusal)
    async def refuse(_: Request, refusal: Refusal) -> JSONResponse:
        headers = None if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
        return JSONResponse({"detail": refusal.detail}, refusal.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        detail = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
        return JSONResponse({"detail": detail}, 422)

    @app.exception_handler(TextError)
    async def unreadable(_: Request, error: TextError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(ClientGone)
    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, _: Exception) -> Response:
        state.metrics.gone.labels(request.url.path).inc()
        return Response(status_code=HUNG_UP)


def _whole(fields: dict[str, str], name: str, otherwise: int | None, *, least: int, most: int) -> int | None:
    """Return an integer from a form field; default: the query's value."""
    if name not in fields:
        return otherwise
    text = fields[name]
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise Refusal(422, f"{name} = {text[:40]!r}: expected a whole number from {least} to {most}")
    return int(text)


def read_files() -> dict[str, tuple[str, bytes]]:
    """Return type and content of the page's files by path; read once, so that requests never name files."""
    folder = resources.files("saccade.deployment") / "page"
    found = {
        PAGES.get(file.name, f"/page/{file.name}"): (TYPES[Path(file.name).suffix], file.read_bytes())
        for file in folder.iterdir()
        if Path(file.name).suffix in TYPES
    }
    report = resources.files("saccade.report")  # shared style and charts
    style = (report / "page.css").read_text(encoding="utf-8") + heat_css()
    charts = (report / "chart.js").read_bytes()
    return {**found, "/page/report.css": ("text/css", style.encode()), "/page/chart.js": (TYPES[".js"], charts)}
