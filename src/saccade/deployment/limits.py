"""Limits on uploads: size, speed, and total memory."""

import asyncio
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """Limits on uploads."""

    max_bytes: int = 16 * MEBIBYTE  # bytes of an upload
    max_pixels: int = (
        40_000_000  # pixels of an image; larger ones are refused by their header, before memory is allocated
    )
    upload_seconds: float = 15.0  # duration of an upload
    # least average bytes a second of an upload, after `slow_seconds`
    min_rate: float = 2048.0
    slow_seconds: float = 2.0  # time before slow uploads are refused
    memory: int = 256 * MEBIBYTE  # bytes of all uploads in memory
    # larger images are decoded in a separate thread, so that small ones need not wait
    large_pixels: int = 4_000_000
    large_waiting: int = 16  # most large images that wait

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "upload_seconds", "min_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}; it must be more than 0")
        if self.memory < self.max_bytes:
            raise ValueError(
                f"memory = {self.memory} is less than max_bytes = {self.max_bytes}, the limit of a single upload; "
                "set it at least that high"
            )


class Refusal(Exception):  # noqa: N818
    """A refused request.

    Args:
        status: HTTP status.
        detail: what was given, what is allowed and what to do next.
        retry_after: seconds after which to retry.
    """

    def __init__(self, status: int, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after


class UploadMemory:
    """Memory of one upload."""

    def __init__(self) -> None:
        self.held = 0
        self.began = 0.0
        self.deadline: asyncio.Timeout | None = None  # set while the body is read
        self.gave_way = False

    def rate(self, now: float) -> float:
        """Return the upload's average bytes a second so far."""
        return self.held / max(now - self.began, 1e-3)


class Uploads:
    """Memory of all uploads. If it is full, the slowest upload is refused."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.received = 0
        self._rooms: dict[UploadMemory, None] = {}

    @contextmanager
    def room(self) -> Iterator[UploadMemory]:
        """Reserve memory for an upload within a context."""
        room = UploadMemory()
        self._rooms[room] = None
        try:
            yield room
        finally:
            self._release(room)
            del self._rooms[room]

    async def read(self, chunks: AsyncIterable[bytes], room: UploadMemory, *, announced: str | None) -> bytes:
        """Read a body; refuse it as soon as it is too large or too slow."""
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
                raise Refusal(503, "too many uploads are in progress; send it again", retry_after=1) from None
            reason = f"was not complete after {self.limits.upload_seconds:g} seconds"
            if clock() < end:
                reason = f"was slower than {self.limits.min_rate:g} bytes per second"
            raise Refusal(408, f"the upload {reason}; send it again") from None
        finally:
            room.deadline = None
        return bytes(body)

    def _deadline_of(self, room: UploadMemory, size: int, end: float) -> float:
        """Return the deadline for the next bytes of an upload of `size` bytes so far."""
        return min(end, room.began + self.limits.slow_seconds + size / self.limits.min_rate)

    def _check(self, size: int) -> None:
        if size > self.limits.max_bytes:
            raise Refusal(
                413,
                f"the upload has {size} bytes or more; the limit is {self.limits.max_bytes}; send a smaller image",
            )

    def _take(self, room: UploadMemory, size: int) -> None:
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

    def _release(self, room: UploadMemory) -> None:
        self.held -= room.held
        room.held = 0
