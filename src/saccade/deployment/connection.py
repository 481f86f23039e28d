"""HTTP connections with deadlines and limits, and graceful shutdown.

ASGI middleware cannot do this: it is called after a request's headers, and does not see connections that send none,
are idle, or do not read responses. uvicorn has no settings for it: `timeout_keep_alive` starts after a response, and
`limit_concurrency` refuses new connections, while here the least used ones are dropped. So uvicorn's setting `http`
gets a subclass of its protocol; nothing is patched. Middleware does the rest: `guard`, `limits`.
"""

import asyncio
import heapq
import ipaddress
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # for a request's headers
UNREAD_SECONDS = 30.0  # for a client to read the response
GRACE_SECONDS = 0.3  # at shutdown, for requests being sent
FRESH_SECONDS = 1.0  # uploads are not slow before this time
IDLE_SECONDS = 5.0  # connections are not idle before this time
FRESH, ANSWERED = 3, 6  # levels of claims
SPARE = 1.75  # connections for a moment, relative to those kept
SHARE = 0.75  # largest share of the connections for one address
LOOK_SECONDS = 0.05  # between searches for connections to drop


class ConnectionPool(Counter[str]):
    """The connections of a server by address."""

    looked = 0.0  # time of the last search


POOLS: WeakKeyDictionary[Any, ConnectionPool] = WeakKeyDictionary()  # by server state


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a deadline for the client's next action."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timer: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        self.since = 0.0  # time of connection, of the request's start or of the last response
        self.taken = 0  # bytes of the request
        self.origin = ""
        self.crowd = POOLS.setdefault(self.server_state, ConnectionPool())

    @property
    def busy(self) -> bool:
        """Whether a request is being processed."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; drop the least used ones if there are too many."""
        super().connection_made(transport)
        self.origin = origin_of(self.client)
        self.crowd[self.origin] += 1
        self.since = self.loop.time()
        self._within(HEADER_SECONDS)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection."""
        for timer in (self.timer, self.unread):
            if timer is not None:
                timer.cancel()
        self.crowd[self.origin] -= 1
        if not self.crowd[self.origin]:
            del self.crowd[self.origin]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; headers have a deadline."""
        waited = not self.busy
        super().data_received(data)
        if self.busy:
            self._within(None)
            if waited:
                self.since, self.taken = self.loop.time(), 0
            self.taken += len(data)
        elif self.timer is None:
            self._within(HEADER_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.since = self.loop.time()

    def pause_writing(self) -> None:
        """Start the deadline of a client that does not read."""
        super().pause_writing()
        self.unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue with a client that reads again."""
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; unread data is dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """Finish running requests, and wait a moment for those being sent."""
        if self.busy:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(GRACE_SECONDS, self._close_if_idle)

    def claim(self, now: float) -> tuple[int, float]:
        """Return a connection's priority; the smallest is dropped first.

        Dropped first are clients that keep sending after a response, then slow uploads (slowest first), then idle
        connections. New connections (`FRESH`) are kept while there are file descriptors left, and requests being
        processed (`ANSWERED`) always.
        """
        age = now - self.since
        if self.busy and not self.cycle.more_body:
            return ANSWERED, 0.0
        if self.busy and self.cycle.response_started:
            return 0, self.since
        if self.busy:
            return (FRESH, self.taken) if age < FRESH_SECONDS else (1, self.taken / age)
        return (FRESH + 1 + (self.cycle is not None) if age < IDLE_SECONDS else 2), self.since

    def _make_room(self) -> None:
        """Drop connections if there are too many in total, or from this address."""
        total, most = len(self.connections), most_connections()
        if total <= most:
            total, most = self.crowd[self.origin], max(int(SHARE * most), 1)
        now, over = self.loop.time(), total - int(SPARE * most)
        if total <= most or (now < self.crowd.looked + LOOK_SECONDS and over <= 0):
            return
        self.crowd.looked = now
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        if most < most_connections():
            others = [one for one in others if one.origin == self.origin]
        claims = heapq.nsmallest(total - most + most // 64, ((*one.claim(now), id(one), one) for one in others))
        left = [one for place, (kind, *_, one) in enumerate(claims) if kind < (ANSWERED if place < over else FRESH)]
        for one in left or ([self] if over > 0 else []):
            one.transport.abort()

    def _close_if_idle(self) -> None:
        if self.transport.is_closing():
            return
        if self.busy:
            self.cycle.keep_alive = False
        elif self.conn.our_state in (h11.IDLE, h11.DONE):
            super().shutdown()
        else:
            self.transport.abort()

    def _within(self, seconds: float | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def most_connections() -> int:
    """Return the most connections: half of the process' file limit, at most 1000."""
    try:
        import resource
    except ImportError:  # Windows
        return 1000
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1000 if soft == resource.RLIM_INFINITY else max(min(1000, soft // 2), 16)


def origin_of(client: tuple[str, int] | None) -> str:
    """Return the key of a client: its IPv4 address, or its IPv6 network."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
