"""Document elements that are rendered to HTML, Markdown and terminal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .markup import Child, Html, breakable, join, shorten, tag
from .page import fold, paragraph, table
from .rows import Interval, interval_chart

MAX_NAME = 80  # most characters of a name on a page
TEXT = 600  # most characters of other cells


class Name(str):
    """A user-defined name: shortened on pages, code in Markdown."""

    __slots__ = ()


class Code(str):
    """Code, such as a setting."""

    __slots__ = ()


@dataclass(frozen=True)
class Span:
    """A number with its interval: drawn on pages, text in Markdown."""

    low: float  # lower end, in the displayed unit
    mean: float  # the number
    high: float  # upper end
    text: str  # all three as text


Cell = str | Span


@dataclass(frozen=True)
class Table:
    """A table. Spans in the second column are drawn over one axis on pages."""

    caption: str  # the caption
    columns: tuple[str, ...]  # names of the columns
    rows: tuple[tuple[Cell, ...], ...]  # cells; the first is the row's name
    numeric: tuple[int, ...] = ()  # columns to align right
    folded: str = ""  # summary of a fold on pages, if any

    def without_empty(self) -> "Table":
        """Return the table without empty columns."""
        kept = [number for number in range(len(self.columns)) if any(row[number] for row in self.rows)]
        rows = tuple(tuple(row[number] for number in kept) for row in self.rows)
        numeric = tuple(place for place, number in enumerate(kept) if number in self.numeric)
        return replace(self, columns=tuple(self.columns[number] for number in kept), rows=rows, numeric=numeric)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str  # plain text
    # "text", "note", "lead", "heading", or "drawing" for explanations of drawings, which only pages have
    kind: Literal["text", "note", "lead", "heading", "drawing"] = "text"


Block = Table | Text | Html  # Html is only rendered on pages


def to_html(blocks: Sequence[Block | None]) -> Html:
    """Render blocks as HTML; None is skipped."""
    return join(*(_html(block) for block in blocks if block is not None))


def to_markdown(blocks: Sequence[Block | None]) -> str:
    """Render blocks as Markdown, without drawings."""
    written = [block for block in blocks if isinstance(block, Table | Text)]
    return "\n\n".join(_markdown(one) for one in written if isinstance(one, Table) or one.kind != "drawing")


def _html(block: Block) -> Html:
    if isinstance(block, Html):
        return block
    if isinstance(block, Text):
        if block.kind == "heading":
            return tag("h3", block.text)
        return paragraph(block.text, class_=block.kind if block.kind in ("note", "lead") else None)
    if any(isinstance(row[1], Span) for row in block.rows):
        drawn = _drawn(block)
    else:
        rows = [[_cell(cell) for cell in row] for row in block.rows]
        drawn = table(block.columns, rows, caption=block.caption, numeric=block.numeric)
    return fold(block.folded, drawn) if block.folded else drawn


def _drawn(block: Table) -> Html:
    rows = []
    for name, span, *remark in block.rows:
        assert isinstance(span, Span)
        rows.append(Interval(str(name), span.low, span.mean, span.high, str(remark[0]) if remark else ""))
    return interval_chart(
        rows,
        title=block.caption,
        x_label=block.columns[1],
        name_label=block.columns[0],
        value_label="Measured value and its interval",
        remark_label=block.columns[-1],
    )


def _cell(cell: Cell) -> Child:
    if isinstance(cell, Span):
        return cell.text
    short = shorten(cell, MAX_NAME if isinstance(cell, Name) else 2 * TEXT)
    return tag("code", breakable(short)) if isinstance(cell, Code) else short


def _markdown(block: Table | Text) -> str:
    if isinstance(block, Text):
        return f"### {block.text}" if block.kind == "heading" else block.text
    rows = [[_written(cell) for cell in row] for row in block.rows]
    lines = [list(block.columns), ["---"] * len(block.columns), *rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{block.caption}.\n\n{body}"


def _written(cell: Cell) -> str:
    text = " ".join((cell.text if isinstance(cell, Span) else cell).split())
    return f"`{text}`" if isinstance(cell, Name | Code) and text else text


BAR = re.compile(r"(?<!\\)\|")


def to_terminal(markdown: str) -> str:
    """Render Markdown as plain text: aligned tables, underlined headings, no emphasis and code marks."""
    found: list[str] = []
    table: list[list[str]] = []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip().replace("\\|", "|") for cell in BAR.split(line.strip())[1:-1]])
            continue
        if table:
            found += _aligned(table)
            table = []
        heading = re.match(r"(#+) (.*)", line)
        if heading is None:
            if not line.startswith("```"):
                found.append(_bare(line))
            continue
        text = _bare(heading[2])
        found += [text, ("=" if heading[1] == "#" else "-") * len(text)]
    return "\n".join(found).rstrip()


def _aligned(table: list[list[str]]) -> list[str]:
    """Align the rows of a Markdown table, whose second row has the alignments."""
    marks = table[1] if len(table) > 1 and all(set(cell) <= set("-: ") for cell in table[1]) else None
    rows = [[_bare(cell) for cell in row] for row in table if row is not marks]
    count = max(map(len, rows))
    rows = [row + [""] * (count - len(row)) for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(count)]
    right = {place for place, mark in enumerate(marks or []) if mark.endswith(":")}
    lines = [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]] if marks else lines


def _bare(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"\1", re.sub(r"`([^`]*)`", r"\1", text))
