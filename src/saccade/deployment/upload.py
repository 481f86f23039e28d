"""The picture in a request: a form's field `file`, or the body itself; taken apart in memory, never on the disk."""

from dataclasses import dataclass, field
from typing import NamedTuple

from .limits import Refusal

KINDS = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")
ALIASES = ("image/jpg", "image/pjpeg", "image/apng", "image/x-png", "image/x-ms-bmp", "image/x-bmp")
UNSAID = ("", "application/octet-stream")  # the contents tell
PARTS, HEADER_BYTES, FIELD_BYTES, BOUNDARY_BYTES, NAME = 16, 4096, 1024, 70, 100


class Picture(NamedTuple):
    """An encoded picture and what its sender calls it."""

    data: bytes
    name: str


@dataclass(frozen=True)
class Form:
    """What a request brought.

    Args:
        picture: the picture.
        fields: the other fields of the form, by name.
    """

    picture: Picture
    fields: dict[str, str] = field(default_factory=dict)


def check_type(content_type: str) -> str:
    """Return a request's type in lower case, without its options; refuse what can hold no picture."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data" or kind in KINDS or kind in ALIASES:
        return kind
    raise Refusal(
        415,
        f"a body of type {kind[:NAME] or 'nothing'} was given; send multipart/form-data with a field `file`, or the "
        f"picture itself as one of {', '.join(KINDS)}",
    )


def read_form(body: bytes, content_type: str) -> Form:
    """Take a body apart.

    Args:
        body: whole.
        content_type: its type with its options.
    """
    if check_type(content_type) != "multipart/form-data":
        return Form(Picture(body, "the picture"))
    picture: Picture | None = None
    fields: dict[str, str] = {}
    for headers, data in _parts(body, _boundary(content_type)):
        options = _options(headers.get("content-disposition", ""))
        name = options.get("name", "")
        if name != "file":
            if "filename" in options:
                raise Refusal(
                    422, f"the field {name[:NAME]!r} holds a file; send the picture in the field `file`, -F file=@NAME"
                )
            if len(data) > FIELD_BYTES:
                raise Refusal(400, f"the field {name[:NAME]!r} has {len(data)} bytes; at most {FIELD_BYTES} are taken")
            fields[name] = data.decode("utf-8", "replace").strip()
        elif picture is not None:
            raise Refusal(422, "the form has more than one field `file`; send one picture in a request")
        else:
            _check_part(headers.get("content-type", ""))
            picture = Picture(data, options.get("filename", "")[-NAME:] or "the picture")
    if picture is None:
        raise Refusal(422, "the form has no field `file`; send the picture in a field of this name")
    return Form(picture, fields)


def _check_part(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (*KINDS, *ALIASES, *UNSAID):
        raise Refusal(415, f"`file` is of type {kind[:NAME]}; pictures are taken as {', '.join(KINDS)}")


def _boundary(content_type: str) -> bytes:
    boundary = _options(content_type).get("boundary", "")
    encoded = boundary.encode("latin-1", "replace")
    if not 0 < len(encoded) <= BOUNDARY_BYTES:
        raise Refusal(400, "a form was announced without a boundary of 1 to 70 characters; send multipart/form-data")
    return encoded


def _parts(body: bytes, boundary: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Return headers and data of each part (RFC 2046, section 5.1)."""
    dashes = b"--" + boundary
    # What stands before the first delimiter is no part; the first one may open the body.
    start = 0 if body.startswith(dashes) else body.find(b"\r\n" + dashes) + 2
    if start == 1:  # not found
        raise Refusal(400, "the form does not hold the boundary it announces; send it again")
    parts: list[tuple[dict[str, str], bytes]] = []
    position = start + len(dashes)
    while not body.startswith(b"--", position):
        begin, end = body.find(b"\r\n", position), body.find(b"\r\n" + dashes, position)
        if end < 0 or body[position:begin].strip(b" \t"):
            raise Refusal(400, "the form ends before its last boundary; it was cut on its way, send it again")
        if len(parts) == PARTS:
            raise Refusal(400, f"the form has more than {PARTS} fields; send `file` and what the description names")
        parts.append(_part(body, begin + 2, end))
        position = end + 2 + len(dashes)
    return parts


def _part(body: bytes, begin: int, end: int) -> tuple[dict[str, str], bytes]:
    blank = body.find(b"\r\n\r\n", begin - 2, min(end + 4, begin + HEADER_BYTES))
    if blank < 0 or blank > end:
        raise Refusal(400, f"a field of the form has no end of its headers within {HEADER_BYTES} bytes; send it again")
    headers = {}
    for line in body[begin:blank].decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers, body[blank + 4 : end]


def _options(header: str) -> dict[str, str]:
    from python_multipart.multipart import parse_options_header

    _, options = parse_options_header(header.encode("utf-8", "replace"))
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in options.items()}
