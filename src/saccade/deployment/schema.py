"""What the OpenAPI description says of bodies, which are read by hand: as they come, in memory, within limits."""

from typing import Any

from .upload import KINDS

_BINARY = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {**_BINARY, "description": f"the picture: {', '.join(kind.partition('/')[2] for kind in KINDS)}"},
        "model": {"type": "string", "description": "as in the query"},
    },
}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FORM}, **{kind: {"schema": _BINARY} for kind in KINDS}},
    }
}

_CLASSES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["class", "share"],
        "properties": {
            "class": {"type": "string"},
            "index": {"type": "integer"},
            "share": {"type": "number", "minimum": 0, "maximum": 1},
        },
    },
}
_FIGURE = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "caption": {"type": "string"},
        "layer": {"type": ["string", "null"]},
        "depth": {"type": ["integer", "null"]},
        "picture": {"type": ["string", "null"], "description": "a PNG as a data URI"},
        "chart": {"type": ["string", "null"], "description": "HTML"},
        "numbers": {"type": "object"},
    },
}
_VIEW = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "title": {"type": "string"},
        "about": {"type": "string"},
        "absent": {"type": ["string", "null"], "description": "why there is nothing to show"},
        "figures": {"type": "array", "items": _FIGURE},
    },
}


def _answer(about: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": list(properties), "properties": properties}
    return {"description": about, "content": {"application/json": {"schema": schema}}}


PREDICTED = _answer(
    "The likeliest classes.",
    {
        "model": {"type": "string"},
        "answer": {"type": "string"},
        "share": {"type": "number"},
        "classes": _CLASSES,
    },
)
EXPLAINED = _answer(
    "The views.",
    {
        "model": {"type": "string"},
        "picture": {"type": ["string", "null"], "description": "what the model saw, a PNG as a data URI"},
        "classes": _CLASSES,
        "views": {"type": "array", "items": _VIEW},
    },
)
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: _answer(about, {"detail": {"type": "string"}})
    for status, about in {
        400: "The form cannot be read.",
        401: "A token is wanted.",
        403: "Asked from another site or under another name.",
        408: "The upload took too long.",
        413: "Too many bytes or pixels.",
        415: "Not a picture in a known format.",
        422: "A damaged picture, or an option that does not exist.",
        503: "Too many are waiting; Retry-After says when to try again.",
    }.items()
}
