"""What the OpenAPI description says of bodies, which are read by hand: as they come, in memory, within limits."""

from typing import Any

from .upload import KINDS

_BINARY = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "description": "an image in `file`; for a model that reads texts `text`, and `pair` for the second of two; "
    "for one that answers questions about images both `file` and `text`",
    "properties": {
        "file": {**_BINARY, "description": f"the image: {', '.join(kind.partition('/')[2] for kind in KINDS)}"},
        "text": {"type": "string", "description": "of a model that reads texts, or the question"},
        "pair": {"type": "string", "description": "the second of two texts"},
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
        "required": ["class", "share"],  # probability of classes; of a mask's classes the area they cover
        "properties": {
            "class": {"type": "string"},
            "index": {"type": "integer"},
            "probability": {"type": "number", "minimum": 0, "maximum": 1},
            "area": {"type": "number", "minimum": 0, "maximum": 1},
            "share": {"type": "number", "minimum": 0, "maximum": 1, "description": "the same, by its earlier name"},
        },
    },
}
_ROWS = {
    "type": "array",
    "description": "the parts of the answer, of any task",
    "items": {
        "type": "object",
        "required": ["name", "text", "share", "said"],
        "properties": {
            "name": {"type": "string"},
            "text": {"type": "string"},
            "probability": {"type": "number", "description": "from 0 to 1, where the part has one"},
            "area": {
                "type": "number",
                "description": "of a mask's class, how much of the image it covers, from 0 to 1",
            },
            "share": {"type": ["number", "null"], "description": "either of them, by its earlier name; else null"},
            "said": {"type": "boolean", "description": "whether the part is the answer, and not listed beside it"},
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


def _answer(about: str, properties: dict[str, Any], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the description of an answer with properties that it always has, and more that it may have."""
    schema = {"type": "object", "required": list(properties), "properties": properties | (more or {})}
    return {"description": about, "content": {"application/json": {"schema": schema}}}


PREDICTED = _answer(
    "What the model says; beside these, what the model's task is known for: of classes, the likeliest ones.",
    {
        "model": {"type": "string"},
        "task": {"type": "string", "description": "classify, multilabel, regress, ..."},
        "text": {"type": "string", "description": "the answer in a few words"},
        "rows": _ROWS,
    },
    {
        "answer": {"description": "the likeliest class, the labels that are said, or the numbers in words"},
        "probability": {"type": ["number", "null"], "description": "of the likeliest class"},
        "area": {"type": "number", "description": "of the class that covers most, of a segmenter"},
        "share": {"type": ["number", "null"], "description": "either of them, by its earlier name"},
        "classes": _CLASSES,
        "labels": {"type": "array", "items": {"type": "object"}, "description": "label, probability, threshold, said"},
        "values": {"type": "object", "description": "numbers by their column"},
        "mask": {
            "type": "object",
            "description": "of a segmenter: png (base64; red + 256 green is the class), colours",
        },
    },
)
EXPLAINED = _answer(
    "The views.",
    {
        "model": {"type": "string"},
        "picture": {"type": ["string", "null"], "description": "what the model saw, a PNG as a data URI"},
        "classes": {**_CLASSES, "description": "the parts of the answer that have a share"},
        "rows": {"type": "array", "items": {"type": "object"}, "description": "name, text and share of all parts"},
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
        415: "Not an image in a known format.",
        422: "A damaged image, or an option that does not exist.",
        503: "Too many are waiting; Retry-After says when to try again.",
    }.items()
}
