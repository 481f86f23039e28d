"""Pictures decoded beside the event loop, the large ones on a lane of their own."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..data.image import BadSample, decode, header
from .limits import Limits, Refusal
from .upload import Picture

STATUS = {"huge": 413, "foreign": 415}  # the others, which are damage, are 422


class Decoder:
    """Decodes pictures in threads.

    Args:
        limits: pixels of a picture, and how many large ones may wait.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._small = ThreadPoolExecutor(max(2, min(os.cpu_count() or 2, 8)), thread_name_prefix="decode")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="decode-large")
        self._waiting = 0

    async def __call__(self, picture: Picture, then: Callable[[np.ndarray], Any]) -> Any:
        """Return what `then` makes of the pixels, H, W, 3 uint8; it is called in the thread."""
        loop = asyncio.get_running_loop()
        try:
            done, result = await loop.run_in_executor(self._small, self._decode_small, picture, then)
            return result if done else await self._decode_large(picture, then)
        except BadSample as bad:
            raise Refusal(STATUS.get(bad.kind, 422), str(bad)) from None

    def close(self) -> None:
        """End the threads."""
        self._small.shutdown()
        self._large.shutdown()

    def _decode_small(self, picture: Picture, then: Callable[[np.ndarray], Any]) -> tuple[bool, Any]:
        head = header(picture.data, name=picture.name, max_pixels=self.limits.max_pixels)
        if head.width * head.height > self.limits.large_pixels:
            return False, None
        return True, self._decode(picture, then)

    async def _decode_large(self, picture: Picture, then: Callable[[np.ndarray], Any]) -> Any:
        if self._waiting >= self.limits.large_waiting:
            raise Refusal(503, f"{self._waiting} large pictures are waiting already; send it again", retry_after=2)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._large, self._decode, picture, then)
        finally:
            self._waiting -= 1

    def _decode(self, picture: Picture, then: Callable[[np.ndarray], Any]) -> Any:
        try:
            return then(decode(picture.data, name=picture.name, max_pixels=self.limits.max_pixels))
        except MemoryError:
            raise Refusal(503, "there is no memory for this picture now; send a smaller one", retry_after=5) from None
