"""What a result shows of itself in a notebook: a small table, or a whole page in a frame of its own."""

from collections.abc import Mapping, Sequence

from .markup import Child, Html, join, tag


def show_table(title: str, rows: Sequence[Sequence[Child]], *, head: Sequence[Child] = ()) -> Html:
    """Return a table under a title.

    Args:
        title: what it is about.
        rows: of cells; the first of each names it.
        head: names of the columns.
    """
    lines = [tag("tr", *(tag("th", cell) for cell in head))] if head else []
    lines += [tag("tr", tag("th", first), *(tag("td", cell) for cell in rest)) for first, *rest in rows]
    return join(tag("p", tag("strong", title)), tag("table", *lines))


def show_facts(title: str, facts: Mapping[str, Child]) -> Html:
    """Return named facts under a title."""
    return show_table(title, list(facts.items()))


def show_page(page: str, *, height: int = 600) -> Html:
    """Return a page in a frame, where its styles and scripts touch nothing else."""
    return tag("iframe", srcdoc=page, sandbox="allow-scripts", width="100%", height=height, style="border:0")
