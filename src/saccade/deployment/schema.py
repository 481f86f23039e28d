"""OpenAPI descriptions of request bodies, which are parsed manually within limits."""

from typing import Any

from .upload import KINDS


def _of(kind: str | list[str], about: str = "", **more: Any) -> dict[str, Any]:
    """Return the schema of a value."""
    return {"type": kind, **more, **({"description": about} if about else {})}


_BINARY, _TEXT, _SHARE = _of("string", format="binary"), _of("string"), _of("number", minimum=0, maximum=1)
_FORM = _of(
    "object",
    "an image in `file`; for a model that reads texts `text`, and `pair` for the second of two; for one that answers "
    "questions about images both `file` and `text`",
    properties={
        "file": {**_BINARY, "description": f"the image: {', '.join(kind.partition('/')[2] for kind in KINDS)}"},
        "text": _of("string", "of a model that reads texts, or the question"),
        "pair": _of("string", "the second of two texts"),
        "model": _of("string", "as in the query"),
    },
)
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FORM}, **{kind: {"schema": _BINARY} for kind in KINDS}},
    }
}

_CLASS = _of(
    "object",
    required=["class", "share"],  # probability of a class; for masks the area of a class
    properties={
        "class": _TEXT,
        "index": _of("integer"),
        "probability": _SHARE,
        "area": _SHARE,
        "share": {**_SHARE, "description": "the same, by its earlier name"},
    },
)
_ROW = _of(
    "object",
    required=["name", "text", "share", "said"],
    properties={
        "name": _TEXT,
        "text": _TEXT,
        "probability": _of("number", "from 0 to 1, where the part has one"),
        "area": _of("number", "of a mask's class, how much of the image it covers, from 0 to 1"),
        "share": _of(["number", "null"], "either of them, by its earlier name; else null"),
        "said": _of("boolean", "whether the part is the answer, and not listed beside it"),
    },
)
_FIGURE = _of(
    "object",
    properties={
        "key": _TEXT,
        "caption": _TEXT,
        "layer": _of(["string", "null"]),
        "depth": _of(["integer", "null"]),
        "picture": _of(["string", "null"], "a PNG as a data URI"),
        "chart": _of(["string", "null"], "HTML"),
        "numbers": _of("object"),
    },
)
_VIEW = _of(
    "object",
    properties={
        "key": _TEXT,
        "title": _TEXT,
        "about": _TEXT,
        "absent": _of(["string", "null"], "why there is nothing to show"),
        "figures": _of("array", items=_FIGURE),
    },
)


def _answer(about: str, properties: dict[str, Any], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a response with required properties, and `more` optional ones."""
    schema = _of("object", required=list(properties), properties=properties | (more or {}))
    return {"description": about, "content": {"application/json": {"schema": schema}}}


PREDICTED = _answer(
    "What the model says; beside these, what the model's task is known for: of classes, the likeliest ones.",
    {
        "model": _TEXT,
        "task": _of("string", "classify, multilabel, regress, ..."),
        "text": _of("string", "the answer in a few words"),
        "rows": _of("array", "the parts of the answer, of any task", items=_ROW),
    },
    {
        "answer": {"description": "the likeliest class, the labels that are said, or the numbers in words"},
        "probability": _of(["number", "null"], "of the likeliest class"),
        "area": _of("number", "of the class that covers most, of a segmenter"),
        "share": _of(["number", "null"], "either of them, by its earlier name"),
        "classes": _of("array", items=_CLASS),
        "labels": _of("array", "label, probability, threshold, said", items=_of("object")),
        "values": _of("object", "numbers by their column"),
        "mask": _of("object", "of a segmenter: png (base64; red + 256 green is the class), colours"),
    },
)
EXPLAINED = _answer(
    "The views.",
    {
        "model": _TEXT,
        "picture": _of(["string", "null"], "what the model saw, a PNG as a data URI"),
        "classes": _of("array", "the parts of the answer that have a share", items=_CLASS),
        "rows": _of("array", "name, text and share of all parts", items=_of("object")),
        "views": _of("array", items=_VIEW),
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
