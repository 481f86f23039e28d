"""Dynamic batching: concurrent requests share a forward pass."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..support.wording import is_memory_error
from .limits import Refusal

Disconnected = Callable[[], Awaitable[bool]]


class ClientGone(Exception):  # noqa: N818
    """The client has disconnected."""


class _Waiting(NamedTuple):
    image: Tensor
    answer: asyncio.Future[np.ndarray]
    disconnected: Disconnected | None


class Batcher:
    """Collects images into batches and runs the model on them.

    A batch starts when it is full, when no further request is being read, or when its first image has waited `wait_ms`.
    The next batch is collected meanwhile.

    Args:
        answer: maps stacked images, B, C, S, S uint8, to one answer each; called in a separate thread.
        batch_size: largest batch.
        wait_ms: most milliseconds that an image waits for others, if the model is idle.
        queue: most waiting images; further ones are refused.
        on_batch: called with the size of each batch.
        stack: combines a batch's tensors; default: torch.stack.
    """

    def __init__(
        self,
        answer: Callable[[Any], Sequence[np.ndarray] | np.ndarray],
        *,
        batch_size: int = 32,
        wait_ms: float = 5.0,
        queue: int = 256,
        on_batch: Callable[[int], None] | None = None,
        stack: Callable[[list[Tensor]], Any] | None = None,
    ) -> None:
        if batch_size < 1 or queue < 1 or wait_ms < 0:
            raise ValueError(
                f"batch_size = {batch_size}, queue = {queue}, wait_ms = {wait_ms:g}: batch_size and queue must be at "
                "least 1, wait_ms at least 0"
            )
        self.answer, self.batch_size, self.wait, self.limit = answer, batch_size, wait_ms / 1000, queue
        self.on_batch, self.stack = on_batch, stack or (lambda samples: torch.stack(samples))
        self._waiting: deque[_Waiting] = deque()
        self._coming = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forward")
        self._worker: asyncio.Task[None] | None = None
        self._closing = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether the worker is running."""
        return self._worker is not None and not self._worker.done()

    def check(self) -> None:
        """Refuse if the queue is full, before an upload is read."""
        if len(self._waiting) >= self.limit:
            raise Refusal(503, f"{self.limit} images are waiting already; send it again in a second", retry_after=1)

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Announce an image that is being read, so that a batch may wait for it."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._arrived.set()  # batches do not wait for a refused image

    async def submit(self, image: Tensor, *, disconnected: Disconnected | None = None) -> np.ndarray:
        """Return the answer for an image.

        Args:
            image: C, S, S uint8.
            disconnected: returns whether the client has disconnected; its image is then dropped.
        """
        self.check()
        waiting = _Waiting(image, asyncio.get_running_loop().create_future(), disconnected)
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.answer

    def start(self) -> None:
        """Start the worker in the running event loop."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Answer waiting images, then stop."""
        self._closing = True
        self._arrived.set()
        if self._worker is not None:
            await self._worker
        self._thread.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                if self._closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            await self._gather(loop.time() + self.wait)
            taken = [self._waiting.popleft() for _ in range(min(self.batch_size, len(self._waiting)))]
            batch = [one for one in taken if await _is_there(one)]
            if batch:
                await self._compute(batch)

    async def _gather(self, until: float) -> None:
        """Wait for a full batch, as long as images are announced and there is time."""
        loop = asyncio.get_running_loop()
        while len(self._waiting) < self.batch_size and self._coming > 0 and not self._closing:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._arrived.wait()
            except TimeoutError:
                return
            if loop.time() >= until:
                return

    async def _compute(self, batch: list[_Waiting]) -> None:
        if self.on_batch is not None:
            self.on_batch(len(batch))
        try:
            images = self.stack([one.image for one in batch])
            rows = list(await asyncio.get_running_loop().run_in_executor(self._thread, self.answer, images))
        except Exception as error:  # errors are sent to the clients; the worker continues
            if is_memory_error(error) or isinstance(error, torch.OutOfMemoryError):
                error = Refusal(503, "not enough memory for this batch at the moment; send it again", retry_after=5)
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one, row in zip_longest(batch, rows[: len(batch)]):
            if one.answer.done():
                continue
            if row is None:
                one.answer.set_exception(RuntimeError(f"got {len(rows)} answers for {len(batch)} images"))
            else:
                one.answer.set_result(row)


async def _is_there(one: _Waiting) -> bool:
    """Whether the client is still connected."""
    if one.answer.done():
        return False
    try:
        disconnected = one.disconnected is not None and await one.disconnected()
    except Exception:  # assume a connection if this fails
        disconnected = False
    if disconnected:
        with suppress(asyncio.InvalidStateError):
            one.answer.set_exception(ClientGone())
        return False
    return True
