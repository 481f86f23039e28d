"""The same values, written as a page and as Markdown."""

from saccade.report.document import Code, Name, Span, Table, Text, to_html, to_markdown
from saccade.report.markup import Html
from support.markup import parse

EVIL = "<b>|x"
PLAIN = Table("What differs", ("Arm", "Setting", "Value"), ((Name(EVIL), Code("optim.lr"), "1|2\n3"),), numeric=(2,))
SPANS = Table(
    "Differences", ("Arm", "Difference", "Remark"), ((Name("a"), Span(-1.0, 0.5, 2.0, "+0.5 [-1, +2]"), "r"),)
)


def test_a_table_is_the_same_on_a_page_and_in_markdown():
    page = parse(to_html([PLAIN]))
    assert page.rows("What differs") == [[EVIL, "optim.lr", "1|2\n3"]]
    assert page.all("code")[0].text == "optim.lr"
    text = to_markdown([PLAIN])
    assert text.splitlines()[0] == "What differs."
    assert text.splitlines()[-1] == "| `<b>\\|x` | `optim.lr` | 1\\|2 3 |"


def test_spans_are_drawn_on_a_page_and_written_in_markdown():
    page = parse(to_html([SPANS]))
    assert page.all("svg")
    assert page.rows("Differences")[0][0] == "a"
    assert "| `a` | +0.5 [-1, +2] | r |" in to_markdown([SPANS])


def test_drawings_and_what_explains_them_are_for_a_page_alone():
    blocks = [
        Text("The dot is the mean.", "drawing"),
        Html("<svg></svg>"),
        Text("Said."),
        Text("Part", "heading"),
        None,
    ]
    assert to_markdown(blocks) == "Said.\n\n### Part"
    page = parse(to_html(blocks))
    assert [one.text for one in page.all("p")] == ["The dot is the mean.", "Said."]
    assert [one.text for one in page.all("h3")] == ["Part"]


def test_columns_without_anything_are_left_out():
    table = Table("t", ("a", "b", "c"), (("x", "", "1"), ("y", "", "")), numeric=(1, 2)).without_empty()
    assert (table.columns, table.rows, table.numeric) == (("a", "c"), (("x", "1"), ("y", "")), (1,))
