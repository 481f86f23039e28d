"""Self-contained pages, without external files, and with no scripts except that of charts."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from .heat import heat_css
from .markup import Child, Html, breakable, join, tag

# A content security policy that only allows embedded content, and scripts by hash.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
CHART = ' data-x="'  # attribute read by the charts' script


@dataclass(frozen=True)
class Section:
    """A section of a page."""

    key: str
    title: str
    body: Html


def render_page(title: str, sections: Sequence[Section], *, kind: str, lead: Child = None, foot: Child = None) -> str:
    """Return a whole HTML page.

    Args:
        sections: sections in order, which are listed in the table of contents.
        kind: text above the title, such as "Training report".
        lead: content before the first section.
        foot: the last line.
    """
    links = [tag("li", tag("a", part.title, href=f"#{part.key}")) for part in sections]
    parts = [
        tag("section", tag("h2", part.title, id=part.key), part.body, aria_labelledby=part.key) for part in sections
    ]
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("p", kind, class_="kind"), tag("h1", title)),
        tag("nav", tag("ul", *links), aria_label="Contents") if links else None,
        tag("main", lead, *parts, id="content", tabindex="-1"),
        tag("footer", tag("p", foot)) if foot else None,
    )
    style, policy = _file("page.css") + heat_css(), POLICY
    if CHART in body:
        code = _file("chart.js")
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy = f"{POLICY}; script-src 'sha256-{digest}'"
        body = Html(f"{body.removesuffix('</body>')}{tag('script', Html(code))}</body>")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", f"{title} · {kind}"),
        tag("style", Html(style)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return (resources.files("saccade.report") / name).read_text(encoding="utf-8")


def paragraph(*children: Child, class_: str | None = None) -> Html:
    """Return a paragraph; the class `name` is for file names."""
    return tag("p", *(breakable(child) if class_ == "name" else child for child in children), class_=class_)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    numeric: Sequence[int] = (),
    wide: bool = False,
) -> Html:
    """Return a table that scrolls horizontally if needed.

    Args:
        header: names of the columns; empty for columns without a name.
        rows: cells, plain text or Html; the first is the row's name.
        caption: caption of the table.
        numeric: columns to align right.
        wide: use the full width, as for cells with bars.
    """
    right = set(numeric)

    def cell(column: int, child: Child) -> Html:
        style = "num" if column in right else None
        if column == 0:
            return tag("th", breakable(child), scope="row", class_=style)
        return tag("td", child if style else breakable(child), class_=style)

    # Unnamed columns have no header cell, which screen readers would read.
    head = [
        tag("th", name, scope="col", class_="num" if i in right else None) if name else tag("td")
        for i, name in enumerate(header)
    ]
    body = [tag("tr", *(cell(i, child) for i, child in enumerate(row))) for row in rows]
    parts = tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body)
    whole = tag("table", *parts, class_="wide" if wide else None)
    return tag("div", whole, class_="scroll", tabindex="0", role="group", aria_label=caption)


def facts(pairs: Sequence[tuple[str, Child, Child]]) -> Html:
    """Return names, values and remarks as tiles."""
    groups = [
        tag("div", tag("dt", name), tag("dd", value), tag("dd", remark, class_="remark") if remark else None)
        for name, value, remark in pairs
    ]
    return tag("dl", *groups, class_="facts")


def next_section(commands: Mapping[str, str]) -> Section:
    """Return the section of next commands, each with its purpose."""
    lines = [tag("li", typed(command), f": {purpose}") for command, purpose in commands.items()]
    return Section("next", "Next steps", tag("ul", *lines, class_="commands"))


def typed(command: str) -> Html:
    """Return a command as code, with line breaks only before flags."""
    words = (tag("span", word, class_="flag") if word.startswith("-") else word for word in command.split(" "))
    return tag("code", join(*words, by=" "))


def fold(summary: str, *children: Child) -> Html:
    """Return a fold."""
    return tag("details", tag("summary", summary), join(*children))


def grid(*children: Child) -> Html:
    """Return figures in a responsive grid."""
    return tag("div", *children, class_="grid")


def show_table(title: str, rows: Sequence[Sequence[Child]], *, head: Sequence[Child] = ()) -> Html:
    """Return a table under a title."""
    lines = [tag("tr", *(tag("th", cell) for cell in head))] if head else []
    lines += [tag("tr", tag("th", first), *(tag("td", cell) for cell in rest)) for first, *rest in rows]
    return join(tag("p", tag("strong", title)), tag("table", *lines))


def show_facts(title: str, facts: Mapping[str, Child]) -> Html:
    """Return named facts under a title."""
    return show_table(title, list(facts.items()))


def show_page(page: str) -> Html:
    """Return a page in an isolated frame."""
    return tag("iframe", srcdoc=page, sandbox="allow-scripts", width="100%", height=600, style="border:0")
