"""Access control of the server: host, origin, token, security headers, and refused uploads."""

import asyncio
import hmac
import time
from collections.abc import Callable, Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .limits import Refusal
from .metrics import Metrics

# Charts and framed reports have inline styles; only the page's own scripts run.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(self), microphone=(), geolocation=()",
    b"cache-control": b"no-store",
}
REST_SECONDS = 10.0  # time to read the rest of a refused upload, so that the client receives the response
REST_BYTES = 256 * 1024 * 1024  # most bytes of that rest


class Guard:
    """Middleware that checks host, origin and token of requests, adds security headers, and counts them.

    The unread rest of a body is read before the connection is closed: closing a socket with unread bytes resets the
    connection, and the client loses the response.

    Args:
        paths: paths that are counted separately.
        free: paths without authentication: the page, which asks for the token, and health checks.
        token: expected `Authorization: Bearer` token; None: no authentication.
        hosts: accepted host names; None: all. On loopback this prevents DNS rebinding.
        stopping: returns whether the server is shutting down; connections are then closed after the response.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        paths: Collection[str],
        free: Collection[str],
        token: str | None = None,
        hosts: Collection[str] | None = None,
        stopping: Callable[[], bool] = bool,
    ) -> None:
        self.app, self.metrics, self.stopping = app, metrics, stopping
        self.paths, self.free = frozenset(paths), frozenset(free)
        self.token = token.encode() if token else None
        self.hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path = time.perf_counter(), self._label(scope["path"])
        body = _Body(scope, receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name, value) for name, value in HEADERS.items() if name not in have),
                ]
                if self.stopping() or body.unread:
                    message["headers"].append((b"connection", b"close"))
                self.metrics.requests.labels(path, message["status"]).inc()
                self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
            elif body.unread and not message.get("more_body"):
                await send({**message, "more_body": True})  # the client has the response, and may still be sending
                await body.drop()
                message = {"type": "http.response.body"}
            await send(message)

        try:
            self._check(scope)
        except Refusal as refusal:
            headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
            await JSONResponse({"detail": refusal.detail}, refusal.status, headers)(scope, body, answer)
        else:
            await self.app(scope, body, answer)

    def _label(self, path: str) -> str:
        if path in self.paths:
            return path
        return "/reports" if path.startswith("/reports/") else "other"  # do not store names from clients

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and not _is_known(host, self.hosts):
            raise Refusal(
                403,
                f"the request is for host {host[:100]!r}; the server accepts {', '.join(sorted(self.hosts))}. Add "
                "the host with --allow-host if this is intended",
            )
        origin, safe = headers.get(b"origin"), scope["method"] in ("GET", "HEAD")
        if origin is not None and not safe and origin.decode("latin-1").partition("://")[2] != host:
            raise Refusal(403, "the request was sent by a page of another site; only the server's own page is allowed")
        if self.token is not None and scope["path"] not in self.free:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
                raise Refusal(401, "the server requires a token; send it as `Authorization: Bearer TOKEN`")


class _Body:
    """The body of a request, and whether it was read completely."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = dict(scope["headers"])
        self.receive = receive
        self.unread = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        self.held_back = headers.get(b"expect", b"").lower() == b"100-continue"  # the client waits for 100 Continue

    async def __call__(self) -> Message:
        """Receive a message of the body."""
        self.held_back = False
        message = await self.receive()
        self.unread = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def drop(self) -> None:
        """Read and drop the rest, up to limits of time and size."""
        left = REST_BYTES
        try:
            async with asyncio.timeout(REST_SECONDS):
                while self.unread and not self.held_back and left > 0:
                    left -= len((await self()).get("body", b""))
        except TimeoutError:
            return


def _is_known(host: str, known: Collection[str]) -> bool:
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.lower() in known
