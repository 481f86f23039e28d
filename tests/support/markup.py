"""A strict reader of HTML pages for tests."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Element:
    tag: str
    attrs: dict[str, str]
    inside: tuple[str, ...]
    words: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.words)


class Document(HTMLParser):
    """Elements of a page in order; anything that is not well formed is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {[element.tag for element in self.open]}"
        ids = [element.attrs["id"] for element in self.elements if "id" in element.attrs]
        assert len(ids) == len(set(ids)), f"ids twice: {ids}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice in <{tag}>: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs}, tuple(e.tag for e in self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.words.append(data)

    def all(self, tag: str, class_: str | None = None) -> list[Element]:
        return [
            element
            for element in self.elements
            if element.tag == tag and (class_ is None or class_ in element.attrs.get("class", "").split())
        ]

    def rows(self, caption: str) -> list[list[str]]:
        """Return the texts of the body of the table whose caption begins so."""
        table = next(element for element in self.all("table") if element.text.startswith(caption))
        rows: list[list[str]] = []
        for element in self.elements[self.elements.index(table) + 1 :]:
            if element.tag == "table":
                break
            if element.tag == "tr" and "tbody" in element.inside:
                rows.append([])
            elif element.tag in ("th", "td") and "tbody" in element.inside:
                rows[-1].append(element.text)
        return rows


def parse(html: str) -> Document:
    """Read a page or a part of one."""
    return Document(html)
