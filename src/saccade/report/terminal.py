"""What a report says in Markdown, for a terminal: aligned tables without rules, and nothing cut."""

import re

BAR = re.compile(r"(?<!\\)\|")


def to_terminal(markdown: str) -> str:
    """Return Markdown as plain text: tables by spaces, headings underlined, marks of emphasis and code gone."""
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
    """Return the rows of a table, the second of which says how columns are aligned."""
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
