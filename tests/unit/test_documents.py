"""The examples in the documents run as they are written; those with stand-ins run in tests/slow/test_docs_run.py."""

import re
import textwrap
from pathlib import Path

import pytest

from saccade.data.reader import READERS
from saccade.explanation.request import VIEWS
from saccade.plugins import PLUGINS
from saccade.tasks.registering import TASKS
from support.docs import PAGES

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "docs/plugins.md",
    "docs/data.md",
    "docs/training.md",
    "docs/statistics.md",
    "docs/token_labels.md",
    "docs/explain.md",
    "docs/evaluate.md",
    "docs/export.md",
    "docs/models.md",
    "docs/architecture.md",
    "docs/tasks.md",
    "docs/text.md",
)
EXAMPLES = [
    (name, index, code)
    for name in DOCUMENTS
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", [pytest.param(code, id=f"{name}-{index}") for name, index, code in EXAMPLES])
def test_example_runs(code, monkeypatch):
    for registry in (PLUGINS, TASKS, READERS, VIEWS):  # what an example registers is nobody else's
        monkeypatch.setattr(registry, "_found", dict(registry))
    exec(compile(textwrap.dedent(code), "example", "exec"), {})


def test_there_are_examples_to_run():
    assert {name for name, _, _ in EXAMPLES} == set(DOCUMENTS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_files_that_documents_name_are_there(document):
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|yaml|md|js))`", document.read_text(encoding="utf-8"))
    places = (ROOT, ROOT / "src", ROOT / "src" / "saccade")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
