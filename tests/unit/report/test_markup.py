import pytest

from saccade.report.markup import Html, escape, join, shorten, tag
from support.markup import parse

EVIL = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'; --></style>", "a & b &lt;", "</title><b>"]


@pytest.mark.parametrize("text", EVIL)
def test_text_and_attributes_come_back_as_they_were(text):
    page = parse(tag("p", tag("b", text), title=text))
    assert [element.tag for element in page.elements] == ["p", "b"]
    assert page.elements[0].attrs == {"title": text}
    assert page.elements[1].text == text


def test_html_is_not_escaped_twice():
    inner = tag("b", "<")
    assert tag("p", inner) == "<p><b>&lt;</b></p>"
    assert escape(escape("<")) == "&lt;"
    assert isinstance(join(inner, "&"), Html)
    assert join(inner, "&", None, 3) == "<b>&lt;</b>&amp;3"


def test_pieces_of_html_that_are_joined_by_a_plain_operation_are_escaped_again():
    # `+` and f-strings give plain strings, which are never trusted.
    assert tag("p", tag("b", "x") + "<i>") == "<p>&lt;b&gt;x&lt;/b&gt;&lt;i&gt;</p>"


def test_names_no_page_may_hold_are_made_printable():
    text = escape("a\x00b\x1b[31m\udcff\n")
    assert text == "a\ufffdb\ufffd[31m\\udcff\n"
    text.encode("utf-8")


def test_attributes_are_spelled_as_html_spells_them():
    assert tag("td", class_="num", aria_label="x", colspan=2) == '<td class="num" aria-label="x" colspan="2"></td>'
    assert tag("line", x1=1.23456, x2=2.0, hidden=True, y1=None, y2=False) == '<line x1="1.23" x2="2" hidden/>'
    assert tag("img", alt="") == '<img alt="">'


def test_shortened_text_keeps_both_ends_and_the_length_asked_for():
    assert shorten("abc", 3) == "abc"
    for most in range(2, 9):
        short = shorten("abcdefghij", most)
        assert len(short) == most
        assert short.startswith("a")
        assert "…" in short
    assert shorten("abcdefghij", 5) == "ab…ij"
