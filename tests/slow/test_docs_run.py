"""Every command and example of the documents and of the recipes' headers is run, in its smallest form.

What each took is printed. Stand-ins are in `support/stand_ins.py`, shorter commands are made in `support/smallest.py`.
"""

import re
import time
from pathlib import Path

import pytest

from support.docs import PAGES, RECIPES, blocks, commands, spans
from support.stand_ins import StandIns
from support.walking import Walk

pytestmark = pytest.mark.slow

# What is not run here: the beginning of a command, and why.
EXCEPTIONS = {
    "python -c": "prints a folder of the package",
    "make": "sets up an environment and runs these very tests; tests/unit/test_documents.py asks `make -n`",
    "pip install": "needs the network; tests/unit/test_documents.py sees that the extras exist",
    "nvidia-cuda-mps-control": "needs a GPU",
    "python benchmarks/accuracy/finetune.py": "needs photographs and trained weights",
    "python benchmarks/claims": "needs archives of CIFAR, and a GPU for minutes",
    "python benchmarks/speed/serve.py": "measures for minutes under load; tests/slow/test_serve_load.py does the like",
    "python benchmarks/speed/svpn.py": "times decompositions of matrices for minutes",
    "saccade compare --tune": "names a flag; the command with it stands below",
}


def items(path: Path):
    """Return what of a page is run, in order: commands, and examples that need stand-ins."""
    examples = [one for one in blocks(path, "python") if re.search(r'"(DATA|IMAGES|cells)"', one.text)]
    examples += [one for one in spans(path) if re.match(r"(for \w+ in )?saccade\.(export|predict)\(\"", one.text)]
    found = [one for one in commands(path) if not any(one.text.startswith(name) for name in EXCEPTIONS)]
    return sorted([*found, *examples], key=lambda one: one.line), set(examples)


WALKED = [path for path in [*PAGES, *RECIPES] if items(path)[0]]


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory):
    return StandIns(tmp_path_factory.mktemp("stand_ins"))


@pytest.mark.parametrize("page", WALKED, ids=lambda path: path.name)
def test_what_a_page_says_to_type_works(page, stand_ins, tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(stand_ins.hub))
    walk, failed, done = Walk(page.name, home, stand_ins), [], set()
    found, examples = items(page)
    for item in found:
        if (item.text, walk.trained) in done:
            continue
        done.add((item.text, walk.trained))
        begun = time.monotonic()
        try:
            (walk.example if item in examples else walk.run)(item)
            told = "ok"
        except Exception as error:
            told = "FAILED"
            failed.append(f"{item}: {item.text}\n    {type(error).__name__}: {error}")
        with capsys.disabled():
            print(f"\n{time.monotonic() - begun:6.1f} s  {told:6}  {item}: {item.text[:120]}", end="", flush=True)
    assert not failed, "\n" + "\n".join(failed)


def test_every_exception_still_stands_in_a_page():
    there = [one.text for path in [*PAGES, *RECIPES] for one in commands(path)]
    assert [name for name in EXCEPTIONS if not any(text.startswith(name) for text in there)] == []
    assert len(EXCEPTIONS) <= 10
