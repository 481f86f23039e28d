"""docs/fidelity.md is complete, and what it names exists: files, tests, recipes and commands."""

import re
import shlex
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import pytest

from saccade.cli import VERBS
from saccade.comparison.plan.arms import parse_arms
from saccade.explanation.request import all_views
from saccade.training.recipes import configure, gather_settings

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0].split(" (")[0]: part for part in TEXT.split("\n## ")[1:]}
ROWS = {
    name: [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\| (.+) \|$", part, re.M)[2:]
    ]
    for name, part in SECTIONS.items()
}
LINKS = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", TEXT)
COMMANDS = sorted(set(re.findall(r"`(saccade [^`]+)`", TEXT)))


def numbered(kind, *numbers):
    return [f"{kind} {number}" for number in numbers]


PAPERS = {
    "NomMer": ["Algorithm 1", *numbered("Table", *range(1, 4)), *numbered("Figure", *range(1, 5))],
    "GLMix": [
        *numbered("Equation", *range(1, 5)),
        *numbered("Figure", *range(1, 9)),
        *numbered("Table", *range(1, 10)),
    ],
    "SoT": [
        *numbered("Equation", *range(1, 9), *(f"S-{n}" for n in range(1, 9))),
        *numbered("Figure", 1, 2, *(f"S-{n}" for n in range(1, 6))),
        *numbered("Table", *range(1, 7), *(f"S-{n}" for n in range(1, 5))),
    ],
    "Context Broadcasting": ["Equation 1", *numbered("Figure", *range(1, 11)), *numbered("Table", *range(1, 12))],
    "DRLoc": [*numbered("Equation", *range(3, 8)), *numbered("Figure", 2, 3), *numbered("Table", *range(6, 17))],
}


@pytest.mark.parametrize("paper", PAPERS)
def test_no_table_figure_or_equation_is_left_out(paper):
    first = [row[0] for row in ROWS[paper]]
    assert [item for item in PAPERS[paper] if first.count(item) != 1] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_says_where_it_is_or_that_it_is_not(paper):
    for row in ROWS[paper]:
        assert len(row) == 5, row
        item, _, where, follows, shown = row
        there = "](" in where or "`" in where
        excused = any(word in where for word in ("not there yet", "nothing to compute", "a drawing", "not in the text"))
        assert there or excused, item
        assert follows == "-" or any(word in follows for word in ("paper", "code", "both", "the same", "forward")), item
        assert shown == "-" or "](" in shown, item
        assert shown != "-" or excused or follows == "-", f"{item} is there and nothing shows it"


def test_every_link_leads_somewhere():
    assert [link for _, link in LINKS if not (PAGE.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("name", "link"), sorted({(n, p) for n, p in LINKS if n.startswith("test_") and ".py" not in n})
)
def test_every_test_it_names_exists(name, link):
    assert re.search(rf"def {name}\(", (PAGE.parent / link).read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command):
    _, verb, *rest = shlex.split(command)
    assert verb in VERBS
    parser = ArgumentParser()
    import_module(f"saccade.commands.{verb}").flags(parser)
    args = parser.parse_args(rest)
    if verb == "explain" and args.views:
        assert set(args.views.split(",")) <= set(all_views())
    if verb == "compare":
        assert [arm.configure(args.recipe, {}) for arm in parse_arms(args.arm)]
    if verb == "train":
        given = gather_settings(model=args.model, plugins=args.plugin, task=args.task)
        assert configure(args.recipe, given)


def test_there_are_commands_to_try():
    assert len(COMMANDS) > 15
