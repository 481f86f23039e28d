"""OpenAPI descriptions of request bodies, which are parsed manually within limits."""

from typing import Any

from .upload import KINDS


def _of(kind: str | list[str], about: str = "", **more: Any) -> dict[str, Any]:
    """Return the schema of a value."""
    return {"type": kind, **more, **({"description": about} if about else {})}


_BINARY, _TEXT, _SHARE = _of("string", format="binary"), _of("string"), _of("number", minimum=0, maximum=1)
_FORM = _of(
    "object",
    "`file`: an image; `text`: the text of a model that reads texts, with `pair` as the second of two; a model that "
    "answers questions about images needs both `file` and `text`",
    properties={
        "file": {**_BINARY, "description": f"the image: {', '.join(kind.partition('/')[2] for kind in KINDS)}"},
        "text": _of("string", "the text of a model that reads texts, or the question"),
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
        "share": {**_SHARE, "description": "the same, under its former name"},
    },
)
_ROW = _of(
    "object",
    required=["name", "text", "share", "said"],
    properties={
        "name": _TEXT,
        "text": _TEXT,
        "probability": _of("number", "from 0 to 1, if the part has one"),
        "area": _of("number", "share of the image that the class of a mask covers, from 0 to 1"),
        "share": _of(["number", "null"], "probability or area, under its former name; null if neither"),
        "said": _of("boolean", "whether the part belongs to the answer, rather than to the alternatives"),
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
    "The model's prediction, with additional fields by task, such as the most probable classes.",
    {
        "model": _TEXT,
        "task": _of("string", "classify, multilabel, regress, ..."),
        "text": _of("string", "the answer in a few words"),
        "rows": _of("array", "the parts of the answer, for every task", items=_ROW),
    },
    {
        "answer": {"description": "the most probable class, the predicted labels, or the numbers as text"},
        "probability": _of(["number", "null"], "of the most probable class"),
        "area": _of("number", "segmentation: of the class with the largest area"),
        "share": _of(["number", "null"], "probability or area, under its former name"),
        "classes": _of("array", items=_CLASS),
        "labels": _of("array", "label, probability, threshold, said", items=_of("object")),
        "values": _of("object", "numbers by column"),
        "mask": _of("object", "segmentation: png (base64; red + 256 green is the class), colours"),
    },
)
EXPLAINED = _answer(
    "The views.",
    {
        "model": _TEXT,
        "picture": _of(["string", "null"], "what the model saw, a PNG as a data URI"),
        "classes": _of("array", "the parts of the answer with a share", items=_CLASS),
        "rows": _of("array", "name, text and share of all parts", items=_of("object")),
        "views": _of("array", items=_VIEW),
    },
)
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: _answer(about, {"detail": {"type": "string"}})
    for status, about in {
        400: "The form cannot be parsed.",
        401: "A token is required.",
        403: "The request comes from another site or uses another host name.",
        408: "The upload took too long.",
        413: "Too many bytes or pixels.",
        415: "Not an image in a known format.",
        422: "A damaged image, or an option that does not exist.",
        503: "Too many requests are waiting; Retry-After says when to try again.",
    }.items()
}
