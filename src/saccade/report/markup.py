"""HTML construction in which plain strings are always escaped."""

import html
import re

VOID = frozenset({"br", "col", "hr", "img", "link", "meta"})
SHAPES = frozenset({"circle", "ellipse", "line", "path", "polygon", "polyline", "rect"})  # self-closing SVG elements
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


Child = str | int | float | None


def escape(text: object) -> Html:
    """Escape text; `Html` is returned unchanged."""
    if isinstance(text, Html):
        return text
    # File names may contain invalid Unicode and control characters.
    printable = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return Html(html.escape(UNPRINTABLE.sub("\ufffd", printable), quote=True))


def join(*children: Child, by: str = "") -> Html:
    """Concatenate children, escaping plain text; None is skipped."""
    return Html(by.join(escape(child) for child in children if child is not None))


def breakable(text: Child) -> Html:
    """Allow line breaks in names, at separators and in very long words."""
    if isinstance(text, Html):
        return text
    joined = re.sub(r"(?<=\w)([_:=/+]|\.(?!\d))(?=\w)", r"\1<wbr>", escape("" if text is None else text))
    return Html(re.sub(r"\w{20}(?=\w{4})", r"\g<0><wbr>", joined))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element.

    Args:
        children: plain text, which is escaped, or Html.
        attributes: `class_` becomes class, `aria_label` aria-label; True is a bare attribute, None and False are
            skipped.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(_short(value))}"')
    opening = " ".join(words)
    if name in VOID:
        return Html(f"<{opening}>")
    if name in SHAPES and not children:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(*children)}</{name}>")


def shorten(text: str, most: int) -> str:
    """Shorten a text by replacing its middle."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def _short(value: object) -> str:
    """Format a coordinate briefly."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
