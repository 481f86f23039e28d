"""Connections that cannot be held open for nothing, and that finish what was begun when the server stops."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # for a request's headers to arrive
UNREAD_SECONDS = 30.0  # for a client to take what was sent to it
REST_SECONDS = 5.0  # for the rest of an upload that was refused: who is still sending would not see the answer
GRACE_SECONDS = 0.3  # after a stop, for requests that are on their way


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a deadline for whatever the client is to do next."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timer: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        self.since = 0.0
        self.stopping = False

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the oldest idle connection gives way where there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._within(HEADER_SECONDS)
        if len(self.connections) > most_connections():
            idle = [one for one in self.connections if isinstance(one, Connection) and not one.busy]
            min(idle, key=lambda one: one.since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        for timer in (self.timer, self.unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; headers that began have to end in time."""
        super().data_received(data)
        if self.busy:
            self._within(None)
            if self.stopping:
                self.cycle.keep_alive = False
        elif self.timer is None:
            self._within(HEADER_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of one that was answered early."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._within(REST_SECONDS)

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
        self.stopping = True
        if self.busy:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(GRACE_SECONDS, self._close_if_idle)

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
