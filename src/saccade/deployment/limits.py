"""What a client may send: how much, how fast, and how much of everyone's uploads is held in memory at once."""

import asyncio
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What is let in.

    Args:
        max_bytes: of one upload.
        max_pixels: of one picture; a larger one is refused from its header, before memory is taken for it.
        upload_seconds: from the first to the last byte of an upload.
        memory: bytes of all uploads that are held at once.
        large_pixels: pictures with more are decoded on a lane of their own, so that small ones need not wait.
        large_waiting: of these, how many may wait.
    """

    max_bytes: int = 16 * MEBIBYTE
    max_pixels: int = 40_000_000
    upload_seconds: float = 15.0
    memory: int = 256 * MEBIBYTE
    large_pixels: int = 4_000_000
    large_waiting: int = 16

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "upload_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} was given; it is more than 0")
        if self.memory < self.max_bytes:
            raise ValueError(
                f"memory = {self.memory} was given, and one upload may have max_bytes = {self.max_bytes}; give at "
                "least that much"
            )


class Refusal(Exception):  # noqa: N818
    """A request that is not answered.

    Args:
        status: of HTTP.
        detail: what was given, what is allowed and what to do next.
        retry_after: seconds after which it may be tried again.
    """

    def __init__(self, status: int, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after


class Room:
    """The memory one upload takes."""

    def __init__(self) -> None:
        self.held = 0
        self.deadline: asyncio.Timeout | None = None  # while it is being read
        self.gave_way = False


class Uploads:
    """The memory of all uploads. Where it is full the oldest one still being sent gives way: who is quick gets through.

    Args:
        limits: what is let in.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.received = 0
        self._rooms: dict[Room, None] = {}  # oldest first

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Give memory to an upload until the end of the `with`."""
        room = Room()
        self._rooms[room] = None
        try:
            yield room
        finally:
            self._release(room)
            del self._rooms[room]

    async def read(self, chunks: AsyncIterable[bytes], room: Room, *, announced: str | None) -> bytes:
        """Return a body, or refuse it as soon as it is too large or too slow.

        Args:
            chunks: of the body, as they come.
            room: taken for it.
            announced: its Content-Length.
        """
        if announced is not None and announced.isascii() and announced.isdigit():
            self._check(int(announced[:20]))
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.upload_seconds) as room.deadline:
                async for chunk in chunks:
                    self._check(len(body) + len(chunk))
                    self._take(room, len(chunk))
                    body += chunk
        except TimeoutError:
            if room.gave_way:
                raise Refusal(503, "too many uploads are under way; send it again", retry_after=1) from None
            raise Refusal(
                408, f"the upload was not complete after {self.limits.upload_seconds:g} seconds; send it again"
            ) from None
        finally:
            room.deadline = None
        return bytes(body)

    def _check(self, size: int) -> None:
        if size > self.limits.max_bytes:
            raise Refusal(
                413,
                f"the upload has {size} bytes or more, and at most {self.limits.max_bytes} are taken; send a smaller "
                "picture",
            )

    def _take(self, room: Room, size: int) -> None:
        if room.gave_way:
            raise TimeoutError
        while self.held + size > self.limits.memory:
            oldest = next((other for other in self._rooms if other is not room and other.deadline), None)
            if oldest is None:
                raise Refusal(503, "the memory for uploads is full; send it again", retry_after=1)
            assert oldest.deadline is not None
            oldest.gave_way = True
            oldest.deadline.reschedule(asyncio.get_running_loop().time())
            oldest.deadline = None
            self._release(oldest)
        room.held += size
        self.held += size
        self.received += size

    def _release(self, room: Room) -> None:
        self.held -= room.held
        room.held = 0
