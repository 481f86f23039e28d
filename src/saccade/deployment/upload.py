"""Read uploads: the form field `file`, or the body itself; in memory, never on disk."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ..data.image import BadSample, decode, header
from .limits import Limits, Refusal
from .texts import FIELDS

KINDS = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")
ALIASES = ("image/jpg", "image/pjpeg", "image/apng", "image/x-png", "image/x-ms-bmp", "image/x-bmp")
UNSAID = ("", "application/octet-stream")  # the type is detected from the content
TEXT_BYTES = 65536
PARTS, HEADER_BYTES, FIELD_BYTES, BOUNDARY_BYTES, MAX_NAME = 16, 4096, 1024, 70, 100
STATUS = {"huge": 413, "foreign": 415}  # HTTP status by kind of fault; others are 422
SILENT = logging.Logger("silent", logging.CRITICAL + 1)  # keep clients' input out of the log


class EncodedImage(NamedTuple):
    """An encoded image and its file name."""

    data: bytes
    name: str


@dataclass(frozen=True)
class Form:
    """A request's form."""

    image: EncodedImage | None  # the image; None for texts
    fields: dict[str, str] = field(default_factory=dict)  # other fields by name


@dataclass
class _Part:
    """A part of a multipart form that is being read."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)


class _Parts:
    """Collects a form's parts from the parser's callbacks."""

    def __init__(self) -> None:
        self.found: list[_Part] = []
        self.in_headers = self.ended = False
        self.header, self.value, self.header_bytes = b"", b"", 0

    def on_part_begin(self) -> None:
        if len(self.found) == PARTS:
            raise Refusal(
                400, f"the form has more than {PARTS} fields; send `file` and the fields in the API description"
            )
        self.found.append(_Part())
        self.in_headers, self.header_bytes = True, 0

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += self._limited(data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += self._limited(data[start:end])

    def on_header_end(self) -> None:
        self.found[-1].headers[_text(self.header).strip().lower()] = _text(self.value).strip()
        self.header = self.value = b""

    def on_headers_finished(self) -> None:
        self.in_headers = False

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.found[-1].data += memoryview(data)[start:end]

    def on_end(self) -> None:
        self.ended = True

    def _limited(self, data: bytes) -> bytes:
        self.header_bytes += len(data)
        if self.header_bytes > HEADER_BYTES:
            raise FormParserError
        return data


def check_type(content_type: str) -> str:
    """Return a request's content type in lower case, without options; refuse unsupported types."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data" or kind in KINDS or kind in ALIASES:
        return kind
    raise Refusal(
        415,
        f"unsupported body type {kind[:MAX_NAME] or 'nothing'}; send multipart/form-data with a field `file`, or the "
        f"image itself as one of {', '.join(KINDS)}",
    )


def read_form(body: bytes, content_type: str) -> Form:
    """Parse a body."""
    if check_type(content_type) != "multipart/form-data":
        return Form(EncodedImage(body, "the image"))
    image: EncodedImage | None = None
    fields: dict[str, str] = {}
    for part in _parse(body, _boundary(content_type)):
        options = _options(part.headers.get("content-disposition", ""))
        name = options.get("name", "")
        if name != "file":
            if "filename" in options:
                raise Refusal(
                    422,
                    f"the field {name[:MAX_NAME]!r} holds a file; send the image in the field `file`, -F file=@NAME",
                )
            most, size = TEXT_BYTES if name in FIELDS else FIELD_BYTES, len(part.data)
            if size > most:
                raise Refusal(400, f"the field {name[:MAX_NAME]!r} has {size} bytes; the limit is {most}")
            fields[name] = _text(part.data).strip()
        elif image is not None:
            raise Refusal(422, "the form has more than one field `file`; send one image per request")
        else:
            kind = part.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in (*KINDS, *ALIASES, *UNSAID):
                raise Refusal(415, f"`file` is of type {kind[:MAX_NAME]}; supported image types are {', '.join(KINDS)}")
            image = EncodedImage(bytes(part.data), options.get("filename", "")[-MAX_NAME:] or "the image")
    if image is None and "text" not in fields:
        raise Refusal(
            422, "the form has no field `file`; send the image in a field of this name, or a text in a field `text`"
        )
    return Form(image, fields)


def _parse(body: bytes, boundary: bytes) -> list[_Part]:
    # Skip the preamble before the first delimiter (RFC 2046, section 5.1), which may also start the body.
    dashes = b"--" + boundary
    start = 0 if body.startswith(dashes) else body.find(b"\r\n" + dashes) + 2
    if start == 1:  # not found
        raise Refusal(400, "the form does not contain the boundary that its header declares; send it again")
    parts = _Parts()
    callbacks: Any = {name: getattr(parts, name) for name in dir(parts) if name.startswith("on_")}
    parser = MultipartParser(boundary, callbacks)
    parser.logger = SILENT
    try:
        parser.write(body[start:])
    except FormParserError:
        if parts.in_headers:
            raise Refusal(
                400, f"the headers of a form field do not end within {HEADER_BYTES} bytes; send it again"
            ) from None
    if not parts.ended:
        raise Refusal(400, "the form ends before its last boundary; it was truncated in transit: send it again")
    return parts.found


def _boundary(content_type: str) -> bytes:
    encoded = _options(content_type).get("boundary", "").encode("latin-1", "replace")
    if not 0 < len(encoded) <= BOUNDARY_BYTES:
        raise Refusal(400, "the form has no boundary of 1 to 70 characters; send multipart/form-data")
    return encoded


def _options(header: str) -> dict[str, str]:
    _, options = parse_options_header(header.encode("utf-8", "replace"))
    return {_text(name): _text(value) for name, value in options.items()}


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")


class Decoder:
    """Decodes images in threads, large ones in a separate thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._small = ThreadPoolExecutor(max(2, min(os.cpu_count() or 2, 8)), thread_name_prefix="decode")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="decode-large")
        self._waiting = 0

    async def __call__(self, image: EncodedImage, then: Callable[[np.ndarray], Any]) -> Any:
        """Decode an image and return `then(pixels)`, H, W, 3 uint8, which is called in the thread."""
        loop = asyncio.get_running_loop()
        try:
            done, result = await loop.run_in_executor(self._small, self._decode_small, image, then)
            return result if done else await self._decode_large(image, then)
        except BadSample as bad:
            raise Refusal(STATUS.get(bad.kind, 422), str(bad)) from None

    def close(self) -> None:
        """Stop the threads."""
        self._small.shutdown()
        self._large.shutdown()

    def _decode_small(self, image: EncodedImage, then: Callable[[np.ndarray], Any]) -> tuple[bool, Any]:
        head = header(image.data, name=image.name, max_pixels=self.limits.max_pixels)
        if head.width * head.height > self.limits.large_pixels:
            return False, None
        return True, self._decode(image, then)

    async def _decode_large(self, image: EncodedImage, then: Callable[[np.ndarray], Any]) -> Any:
        if self._waiting >= self.limits.large_waiting:
            raise Refusal(503, f"{self._waiting} large images are waiting already; send it again", retry_after=2)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._large, self._decode, image, then)
        finally:
            self._waiting -= 1

    def _decode(self, image: EncodedImage, then: Callable[[np.ndarray], Any]) -> Any:
        try:
            return then(decode(image.data, name=image.name, max_pixels=self.limits.max_pixels))
        except MemoryError:
            raise Refusal(
                503, "not enough memory for this image at the moment; send a smaller one", retry_after=5
            ) from None
