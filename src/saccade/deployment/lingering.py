"""A connection that is closed once its client has taken the last answer."""

import asyncio
from collections.abc import Callable
from typing import Any


class Lingering:
    """A transport whose closing waits for the rest of what the client is sending.

    To close a socket that holds unread bytes resets the connection, and the client loses the answer that was written.

    Args:
        transport: what is closed.
        sending: whether the client has more to send.
        begin: told that from now on what comes is to be dropped.
    """

    def __init__(self, transport: asyncio.Transport, *, sending: Callable[[], bool], begin: Callable[[], None]) -> None:
        self.transport, self.sending, self.begin = transport, sending, begin
        self.lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self.lingering or self.transport.is_closing()

    def close(self) -> None:
        """End the answer; close now, or when the client is done sending, which `begin` sees to."""
        if self.lingering or self.transport.is_closing() or not self.sending():
            self.transport.close()
            return
        self.lingering = True
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.begin()
