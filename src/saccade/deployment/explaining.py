"""Explanations of single images as JSON."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..explanation.view import Figure, View
from ..report import png_uri
from ..report.plain import to_json
from .batching import ClientGone, Disconnected
from .limits import Refusal

LARGEST, SMALLEST = 448, 168  # largest and smallest longer side of a figure, in pixels

Explain = Callable[..., Any]


class Explainer:
    """Explains images sequentially.

    Args:
        target: the model, as for `saccade.explain`; it is opened a second time, since recording a model that serves
            other requests would mix up their images.
        function: `saccade.explain`, or a replacement.
    """

    limit = 4  # most waiting requests

    def __init__(self, target: Any, *, device: str = "cpu", function: Explain | None = None) -> None:
        self.target, self.device, self.function = target, device, function
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explain")
        self._lock = asyncio.Lock()
        self._inside = 0

    def check(self) -> None:
        """Refuse if too many requests wait."""
        if self._inside > self.limit:
            raise Refusal(503, f"{self.limit} images are waiting to be explained; send it again", retry_after=5)

    async def explain(
        self, pixels: np.ndarray | str, *, views: Sequence[str] | None, disconnected: Disconnected
    ) -> dict[str, Any]:
        """Return the views of an image.

        Args:
            pixels: H, W, 3 uint8; or a text.
            views: keys of views; None: all.
            disconnected: returns whether the client has disconnected.
        """
        self.check()
        self._inside += 1
        try:
            async with self._lock:
                if await disconnected():
                    raise ClientGone
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._explain, pixels, views)
        finally:
            self._inside -= 1

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown()

    def _explain(self, pixels: np.ndarray | str, views: Sequence[str] | None) -> dict[str, Any]:
        if self.function is None:
            from ..explanation.explain import explain

            self.function = explain
        try:
            explained = self.function(self.target, [pixels], views=views, device=self.device).samples[0]
        except ValueError as error:
            raise Refusal(422, str(error)) from error
        return {
            "picture": _uri(explained.pixels),
            "classes": [{"class": name, **to_json(explained.measured(share))} for name, share in explained.answer],
            "rows": [
                {"name": name, "text": text, **to_json(explained.measured(share))}
                for name, text, share in explained.rows
            ],
            "views": [_view(view) for view in explained.views],
        }


def _view(view: View) -> dict[str, Any]:
    return {**vars(view), "numbers": to_json(view.numbers), "figures": [_figure(figure) for figure in view.figures]}


def _figure(figure: Figure) -> dict[str, Any]:
    found = {**vars(figure), "picture": _uri(figure.pixels), "numbers": to_json(figure.numbers)}
    del found["pixels"]
    return found


def _uri(pixels: np.ndarray | None) -> str | None:
    return None if pixels is None else png_uri(pixels, largest=LARGEST, smallest=SMALLEST)
