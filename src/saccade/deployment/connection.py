"""Connections that cannot be held open for nothing, and that finish what was begun when the server stops.

An ASGI layer comes too late for this: it is called when the headers of a request have arrived, and never hears of
connections that send none, that are idle, or whose clients take no answer; nor can it close one under another client.
uvicorn has no settings for it: `timeout_keep_alive` begins after an answer, and `limit_concurrency` refuses newcomers
where here those give way who use their place least. What a layer can do lies in one: `guard`, `limits`. So uvicorn is
given, by its setting `http`, a protocol that derives from its own; nothing of it is patched.
"""

import asyncio
import heapq
import ipaddress
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # for a request's headers to arrive
UNREAD_SECONDS = 30.0  # for a client to take what was sent to it
GRACE_SECONDS = 0.3  # after a stop, for requests that are on their way
FRESH_SECONDS = 1.0  # so long no upload can be called slow
IDLE_SECONDS = 5.0  # so long nobody can be said to ask nothing
FRESH, ANSWERED = 3, 6  # claims
SPARE = 1.75  # times the connections that are kept: so many there are for a moment
SHARE = 0.75  # of the connections, for one address
LOOK_SECONDS = 0.05  # between two looks for connections to drop


class Crowd(Counter[str]):
    """The connections of a server by their address."""

    looked = 0.0  # when some were dropped last


CROWDS: WeakKeyDictionary[Any, Crowd] = WeakKeyDictionary()  # by the state of their server


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a deadline for whatever the client is to do next."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timer: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        self.since = 0.0  # when it came, its request began or its last answer ended
        self.taken = 0  # bytes of its request
        self.origin = ""
        self.crowd = CROWDS.setdefault(self.server_state, Crowd())

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; where there are too many, those that use their place least give way."""
        super().connection_made(transport)
        self.origin = origin_of(self.client)
        self.crowd[self.origin] += 1
        self.since = self.loop.time()
        self._within(HEADER_SECONDS)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        for timer in (self.timer, self.unread):
            if timer is not None:
                timer.cancel()
        self.crowd[self.origin] -= 1
        if not self.crowd[self.origin]:
            del self.crowd[self.origin]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; headers that began have to end in time."""
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
        """Give a client that does not read some time."""
        super().pause_writing()
        self.unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is not used; what its client does not take is dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """Finish what is being answered; wait a moment for what is on its way."""
        if self.busy:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(GRACE_SECONDS, self._close_if_idle)

    def claim(self, now: float) -> tuple[int, float]:
        """Return a connection's claim to its place; the smallest goes first.

        Who was answered and goes on sending goes before slow uploads, the slowest first, and these before whoever asks
        nothing. Whoever began a moment ago (`FRESH`) stays while there are files left, and what is being answered
        (`ANSWERED`) always.
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
        """Drop connections where all of them, or those of this one's address, are too many."""
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
    """Return how many connections are kept: half of the files the process may open, at most 1000."""
    try:
        import resource
    except ImportError:  # Windows
        return 1000
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1000 if soft == resource.RLIM_INFINITY else max(min(1000, soft // 2), 16)


def origin_of(client: tuple[str, int] | None) -> str:
    """Return what one client has one of: its address, of IPv6 the network, which is all of one client's."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
