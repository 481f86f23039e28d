"""What a client may send: how much, how fast, and how much of everyone's uploads is held in memory at once."""

import asyncio
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What is let in."""

    max_bytes: int = 16 * MEBIBYTE  # of one upload
    max_pixels: int = 40_000_000  # of one image; a larger one is refused from its header, before memory is taken for it
    upload_seconds: float = 15.0  # from the first to the last byte of an upload
    # bytes a second that an upload brings on average, once it has been under way for `slow_seconds`
    min_rate: float = 2048.0
    slow_seconds: float = 2.0  # that an upload may be slower
    memory: int = 256 * MEBIBYTE  # bytes of all uploads that are held at once
    # images with more are decoded on a lane of their own, so that small ones need not wait
    large_pixels: int = 4_000_000
    large_waiting: int = 16  # of these, how many may wait

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "upload_seconds", "min_rate"):
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
        self.began = 0.0
        self.deadline: asyncio.Timeout | None = None  # while it is being read
        self.gave_way = False

    def rate(self, now: float) -> float:
        """Return the bytes a second it has brought so far."""
        return self.held / max(now - self.began, 1e-3)


class Uploads:
    """The memory of all uploads. Where it is full the slowest one being sent gives way: who is quick gets through."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.received = 0
        self._rooms: dict[Room, None] = {}

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
        """Return a body, or refuse it as soon as it is too large or too slow."""
        if announced is not None and announced.isascii() and announced.isdigit():
            self._check(int(announced[:20]))
        body = bytearray()
        clock = asyncio.get_running_loop().time
        room.began = clock()
        end = room.began + self.limits.upload_seconds
        try:
            async with asyncio.timeout_at(self._deadline_of(room, 0, end)) as room.deadline:
                async for chunk in chunks:
                    self._check(len(body) + len(chunk))
                    self._take(room, len(chunk))
                    body += chunk
                    room.deadline.reschedule(self._deadline_of(room, len(body), end))
        except TimeoutError:
            if room.gave_way:
                raise Refusal(503, "too many uploads are under way; send it again", retry_after=1) from None
            reason = f"was not complete after {self.limits.upload_seconds:g} seconds"
            if clock() < end:
                reason = f"came at less than {self.limits.min_rate:g} bytes a second"
            raise Refusal(408, f"the upload {reason}; send it again") from None
        finally:
            room.deadline = None
        return bytes(body)

    def _deadline_of(self, room: Room, size: int, end: float) -> float:
        """Return when an upload of so many bytes so far has to have brought more."""
        return min(end, room.began + self.limits.slow_seconds + size / self.limits.min_rate)

    def _check(self, size: int) -> None:
        if size > self.limits.max_bytes:
            raise Refusal(
                413,
                f"the upload has {size} bytes or more, and at most {self.limits.max_bytes} are taken; send a smaller "
                "image",
            )

    def _take(self, room: Room, size: int) -> None:
        if room.gave_way:
            raise TimeoutError
        while self.held + size > self.limits.memory:
            now = asyncio.get_running_loop().time()
            others = [other for other in self._rooms if other is not room and other.deadline]
            if not others:
                raise Refusal(503, "the memory for uploads is full; send it again", retry_after=1)
            slowest = min(others, key=lambda other: other.rate(now))
            assert slowest.deadline is not None
            slowest.gave_way = True
            slowest.deadline.reschedule(now)
            slowest.deadline = None
            self._release(slowest)
        room.held += size
        self.held += size
        self.received += size

    def _release(self, room: Room) -> None:
        self.held -= room.held
        room.held = 0
